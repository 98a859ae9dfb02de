"""The judges of a history: each is shown one that is in order and one that is not."""

from typing import Any

import msgspec
import pytest

from holdfast.api.core.objects import Node, Pod
from tests.chaos.invariants import busiest, orphans, overbooked, overlaps
from tests.control_plane.changes import Change

LATER = "2026-01-01T00:00:30Z"


class Told:
    """A history as it is written: each line is a change."""

    def __init__(self) -> None:
        self.changes: list[Change[Any]] = []

    def node(self, name: str, *, ready: bool = True, gpus: int = 8, gone: bool = False) -> None:
        status = {
            "allocatable": {"nvidia.com/gpu": gpus},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        }
        self._add(msgspec.convert({"metadata": {"name": name}, "status": status}, Node), gone)

    def pod(
        self,
        job: str,
        attempt: int,
        *,
        on: str = "",
        phase: str = "Running",
        stopping: bool = False,
        gone: bool = False,
    ) -> None:
        body: dict[str, Any] = {
            "metadata": {
                "name": f"{job}-{attempt}",
                "namespace": "ml",
                "uid": f"{job}-{attempt}",
                "labels": {"training-job": job, "holdfast.dev/attempt": str(attempt)},
                "deletionTimestamp": LATER if stopping else "",
            },
            "spec": {
                "nodeName": on,
                "containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": "4"}}}],
            },
            "status": {"phase": phase},
        }
        self._add(msgspec.convert(body, Pod), gone)

    def _add(self, obj: Pod | Node, gone: bool) -> None:
        self.changes.append(Change(len(self.changes), obj, gone=gone))


@pytest.fixture
def told() -> Told:
    told = Told()
    told.node("a")
    told.node("b")
    return told


def test_an_attempt_after_the_other_is_no_overlap(told: Told) -> None:
    told.pod("bert", 0, on="a")
    told.pod("bert", 0, on="a", phase="Failed")
    told.pod("bert", 1, on="b")
    assert overlaps(told.changes) == []


def test_a_deleted_pod_runs_no_more(told: Told) -> None:
    told.pod("bert", 0, on="a")
    told.pod("bert", 0, on="a", gone=True)
    told.pod("bert", 1, on="b")
    assert overlaps(told.changes) == []


def test_two_attempts_at_once_are_found(told: Told) -> None:
    told.pod("bert", 0, on="a")
    told.pod("bert", 1, on="b")
    assert overlaps(told.changes) == ["3: ml/bert ['0', '1']"]


def test_a_pod_that_is_stopping_runs_until_it_has_ended(told: Told) -> None:
    told.pod("bert", 0, on="a", stopping=True)
    told.pod("bert", 1, on="b")
    assert len(overlaps(told.changes)) == 1


def test_a_pod_without_a_node_does_not_run(told: Told) -> None:
    told.pod("bert", 0, on="a")
    told.pod("bert", 1, phase="Pending")
    assert overlaps(told.changes) == []


def test_a_bound_pod_counts_before_it_runs(told: Told) -> None:
    told.pod("bert", 0, on="a")
    told.pod("bert", 1, on="b", phase="Pending")
    assert len(overlaps(told.changes)) == 1


def test_attempts_of_different_jobs_may_run_at_once(told: Told) -> None:
    told.pod("bert", 0, on="a")
    told.pod("gpt", 1, on="b")
    assert overlaps(told.changes) == []


@pytest.mark.parametrize("gone", [True, False])
def test_on_a_node_that_is_away_an_old_worker_does_not_count(told: Told, gone: bool) -> None:
    told.pod("bert", 0, on="a")
    told.node("a", ready=False, gone=gone)
    told.pod("bert", 1, on="b")
    assert overlaps(told.changes) == []


def test_one_that_was_not_stopped_counts_again_when_its_node_comes_back(told: Told) -> None:
    told.pod("bert", 0, on="a")
    told.node("a", gone=True)
    told.pod("bert", 1, on="b")
    told.node("a")
    assert overlaps(told.changes) == ["5: ml/bert ['0', '1']"]


def test_one_that_was_stopped_while_its_node_was_away_is_given_up_for_good(told: Told) -> None:
    told.pod("bert", 0, on="a")
    told.node("a", gone=True)
    told.pod("bert", 0, on="a", stopping=True)
    told.pod("bert", 1, on="b")
    told.node("a")
    assert overlaps(told.changes) == []


def test_changes_count_in_the_order_in_which_they_happened(told: Told) -> None:
    told.pod("bert", 0, on="a")
    told.pod("bert", 0, on="a", phase="Succeeded")
    told.pod("bert", 1, on="b")
    assert overlaps(reversed(told.changes)) == []


def test_a_node_may_give_away_all_that_it_has_and_no_more(told: Told) -> None:
    told.pod("bert", 0, on="a")
    told.pod("gpt", 0, on="a")
    assert overbooked(told.changes) == []
    told.pod("vit", 0, on="a")
    assert overbooked(told.changes) == ["4: a gave away 12"]


def test_the_busiest_moment_is_counted(told: Told) -> None:
    told.pod("bert", 0, on="a")
    told.pod("gpt", 0, on="b")
    told.pod("bert", 0, on="a", gone=True)
    told.pod("vit", 0, on="a")
    assert busiest(told.changes) == 2


def thing(kind: str, uid: str, owner: str = "") -> dict[str, Any]:
    owners = [{"uid": owner}] if owner else []
    return {"kind": kind, "metadata": {"name": f"{kind.lower()}-{uid}", "uid": uid, "ownerReferences": owners}}


def test_what_belongs_to_a_living_job_is_no_orphan() -> None:
    assert orphans([thing("Job", "j", "bert"), thing("Pod", "p", "j")], {"bert"}) == []


def test_what_belongs_to_nobody_or_to_one_that_is_gone_is_an_orphan() -> None:
    there = [thing("Job", "j", "gone"), thing("Pod", "p", "j"), thing("Service", "s")]
    assert orphans(there, {"bert"}) == ["Job job-j", "Pod pod-p", "Service service-s"]
