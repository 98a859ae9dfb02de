"""What a delete does to an object, as a table: document and request in, verdict out."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.cluster.protocol import JSON, Propagation
from holdfast.local.apiserver.catalog import builtin_kinds
from holdfast.local.apiserver.writes import DeletionResult, ends_with_update, plan_deletion

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
AT_ONCE = "2026-01-02T03:04:05Z"
BACKGROUND, FOREGROUND, ORPHAN = Propagation.BACKGROUND, Propagation.FOREGROUND, Propagation.ORPHAN
HELD = "holdfast.dev/held"
KINDS = {kind.kind: kind for kind in builtin_kinds()}


def document(kind: str, *, spec: JSON | None = None, status: JSON | None = None, **metadata: Any) -> JSON:
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": "one", **metadata},
        "spec": spec or {},
        "status": status or {},
    }


def bound(**metadata: Any) -> JSON:
    return document("Pod", spec={"nodeName": "n", "terminationGracePeriodSeconds": 30}, **metadata)


def judged(
    each: JSON, propagation: Propagation = BACKGROUND, grace_period_s: int | None = None, after_s: float = 0
) -> DeletionResult:
    return plan_deletion(KINDS[each["kind"]], each, propagation, grace_period_s, NOW + timedelta(seconds=after_s))


def mark(verdict: DeletionResult) -> tuple[str, int]:
    assert verdict.marked is not None
    metadata = verdict.marked["metadata"]
    return metadata["deletionTimestamp"], metadata["deletionGracePeriodSeconds"]


def test_an_object_that_nothing_holds_ends_at_once() -> None:
    assert judged(document("ConfigMap")) == DeletionResult(ends=True)


def test_a_finalizer_keeps_the_object_and_marks_it() -> None:
    verdict = judged(document("ConfigMap", finalizers=[HELD], generation=3))
    assert not verdict.ends
    assert mark(verdict) == (AT_ONCE, 0)
    assert verdict.marked is not None
    assert verdict.marked["metadata"]["generation"] == 4


def test_a_second_delete_of_a_marked_object_changes_nothing() -> None:
    first = judged(document("ConfigMap", finalizers=[HELD], generation=3))
    assert first.marked is not None
    assert judged(first.marked, after_s=100) == DeletionResult(ends=False)


@pytest.mark.parametrize(
    ("finalizers", "propagation", "kept"),
    [
        ([], FOREGROUND, ["foregroundDeletion"]),
        ([], ORPHAN, ["orphan"]),
        ([HELD], FOREGROUND, [HELD, "foregroundDeletion"]),
        (["orphan", HELD], BACKGROUND, [HELD]),
        (["foregroundDeletion"], ORPHAN, ["orphan"]),
    ],
)
def test_the_propagation_is_written_into_the_finalizers(
    finalizers: list[str], propagation: Propagation, kept: list[str]
) -> None:
    verdict = judged(document("ConfigMap", finalizers=finalizers), propagation)
    assert verdict.marked is not None
    assert verdict.marked["metadata"]["finalizers"] == kept
    assert not verdict.ends


def test_a_background_delete_ends_what_waited_for_its_dependents() -> None:
    waiting = document("ConfigMap", finalizers=["foregroundDeletion"], deletionTimestamp=AT_ONCE)
    assert judged(waiting).ends


def test_a_bound_pod_is_left_to_its_runner_for_its_grace_period() -> None:
    verdict = judged(bound(generation=1))
    assert not verdict.ends
    assert mark(verdict) == ("2026-01-02T03:04:35Z", 30)
    assert verdict.marked is not None
    assert verdict.marked["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    "pod",
    [
        document("Pod", spec={"terminationGracePeriodSeconds": 30}),
        document("Pod", spec={"nodeName": "n"}, status={"phase": "Succeeded"}),
        document("Pod", spec={"nodeName": "n"}, status={"phase": "Failed"}),
    ],
)
def test_a_pod_of_which_nothing_runs_ends_at_once(pod: JSON) -> None:
    verdict = judged(pod)
    assert verdict.ends
    assert mark(verdict) == (AT_ONCE, 0)


def test_the_runner_ends_a_pod_with_no_grace_left() -> None:
    first = judged(bound())
    assert first.marked is not None
    last = judged(first.marked, grace_period_s=0, after_s=3)
    assert last.ends


@pytest.mark.parametrize(("asked", "after_s"), [(None, 0), (30, 0), (60, 10)])
def test_a_grace_period_can_not_be_made_longer(asked: int | None, after_s: float) -> None:
    first = judged(bound())
    assert first.marked is not None
    assert judged(first.marked, grace_period_s=asked, after_s=after_s) == DeletionResult(ends=False)


@pytest.mark.parametrize(
    ("asked", "after_s", "marked"),
    [
        (10, 0, ("2026-01-02T03:04:15Z", 10)),
        (10, 4, ("2026-01-02T03:04:15Z", 10)),
        (5, 20, ("2026-01-02T03:04:25Z", 1)),
    ],
)
def test_a_shorter_grace_period_counts_from_the_first_request(
    asked: int, after_s: float, marked: tuple[str, int]
) -> None:
    first = judged(bound())
    assert first.marked is not None
    assert mark(judged(first.marked, grace_period_s=asked, after_s=after_s)) == marked


@pytest.mark.parametrize(("asked", "given"), [(5, 5), (None, 30), (-1, 1)])
def test_the_grace_period_is_what_was_asked_for_or_the_pods_own(asked: int | None, given: int) -> None:
    assert mark(judged(bound(), grace_period_s=asked))[1] == given


def test_a_pod_with_a_finalizer_stays_even_without_grace() -> None:
    verdict = judged(bound(finalizers=[HELD]), grace_period_s=0)
    assert not verdict.ends
    assert mark(verdict) == (AT_ONCE, 0)


def test_a_namespace_waits_until_it_is_emptied() -> None:
    namespace = document("Namespace", spec={"finalizers": ["kubernetes"]}, status={"phase": "Active"})
    verdict = judged(namespace)
    assert verdict.marked is not None
    assert verdict.marked["status"] == {"phase": "Terminating"}
    assert judged(verdict.marked, after_s=9) == DeletionResult(ends=False)
    assert judged({**verdict.marked, "spec": {}}).ends


MARKED: JSON = {"deletionTimestamp": AT_ONCE, "deletionGracePeriodSeconds": 0}


@pytest.mark.parametrize(
    ("new", "old", "ends"),
    [
        (document("ConfigMap"), document("ConfigMap", finalizers=[HELD], **MARKED), True),
        (document("ConfigMap", finalizers=[HELD]), document("ConfigMap", finalizers=[HELD, "a/b"], **MARKED), False),
        (document("ConfigMap"), document("ConfigMap", finalizers=[HELD]), False),
        (document("Pod"), document("Pod", deletionTimestamp=AT_ONCE, deletionGracePeriodSeconds=30), False),
        (document("Namespace", spec={"finalizers": ["kubernetes"]}), document("Namespace", **MARKED), False),
        (document("Namespace"), document("Namespace", deletionTimestamp=AT_ONCE), True),
    ],
)
def test_an_update_ends_what_only_waited_for_it(new: JSON, old: JSON, ends: bool) -> None:
    assert ends_with_update(new, old) is ends
