"""A workload stands in line, keeps its room or gives it back, by what is seen of it."""

from random import Random
from typing import Any

import pytest
from msgspec import structs

from holdfast.gpuworkload.decision import sync_placement
from holdfast.gpuworkload.snapshot import TIMING, GPUWorkloadSnapshot, pending_step, recheck_in_s, request_for
from holdfast.scheduling.ledger import Ledger
from holdfast.scheduling.messages import MESSAGE_INTERVAL_S
from holdfast.scheduling.placement import Placement
from tests.gpuworkloads import CHOSEN, NODE, RUNNING, SCHEDULED, job, pending, pod, seen, workload
from tests.scheduling.nodes import ledger, node
from tests.scheduling.placement.requests import free_gpus, request
from tests.trainingjobs import UID, at, stamp
from tests.trainingjobs import node as silent

SHAPE = request("w", 2).shape
CHOSEN_ALONE = seen(workload(status=CHOSEN))
STARTED = seen(workload(status=SCHEDULED), job=job())
TURNED_AWAY = seen(workload(status=SCHEDULED), job=job(), pods=(pending("no room"),))


def world(gpus: int = 4) -> tuple[Ledger, Placement]:
    kept = ledger(node(NODE, gpus=gpus))
    return kept, Placement(
        kept,
        Random(0),
        reservation_timeout_s=TIMING.reservation_timeout_s,
        starvation_timeout_s=TIMING.starvation_timeout_s,
    )


def attended(
    observed: GPUWorkloadSnapshot, placement: Placement, now_s: float = 0
) -> tuple[GPUWorkloadSnapshot, float | None]:
    return sync_placement(observed, placement, SHAPE, at(now_s), now_s, TIMING)


def test_it_gets_what_it_was_given_with_the_look_after_it_joined() -> None:
    kept, placement = world()
    assert attended(seen(workload()), placement)[0].offered_node == ""
    placement.run_pass(0)
    observed, again_s = attended(seen(workload()), placement)
    assert (observed.offered_node, observed.wait, again_s) == (NODE, None, None)
    assert free_gpus(kept, NODE) == 2


def test_a_workload_that_waits_gets_the_reason_and_when_to_ask_again() -> None:
    _, placement = world(gpus=1)
    attended(seen(workload()), placement)
    placement.run_pass(0)
    observed, again_s = attended(seen(workload()), placement)
    assert observed.wait is not None
    assert (observed.wait.never, again_s) == (True, MESSAGE_INTERVAL_S)


@pytest.mark.parametrize(
    ("status", "facts", "free"),
    [
        (CHOSEN, {}, 2),
        (SCHEDULED, {"job": job()}, 2),
        (SCHEDULED, {"job": job(), "pods": (pod("Pending", on=""),)}, 2),
        (RUNNING, {"job": job(), "pods": (pod(),)}, 4),  # its pod, which this ledger has not seen, speaks for itself
        ({**RUNNING, "phase": "Succeeded"}, {"job": job()}, 4),
        ({"phase": "Pending", "jobName": "eval-job", "nextRetryTime": stamp(30)}, {}, 4),
    ],
)
def test_after_a_restart_only_a_choice_without_its_pod_is_assumed(
    status: dict[str, Any], facts: dict[str, Any], free: int
) -> None:
    kept, placement = world()
    attended(seen(workload(status=status), **facts), placement)
    assert free_gpus(kept, NODE) == free


@pytest.mark.parametrize(
    ("spec", "status"),
    [({"suspend": True}, None), ({}, {"phase": "Failed"}), ({}, {"phase": "Pending", "nextRetryTime": stamp(30)})],
)
def test_a_workload_that_stops_asking_gives_its_node_back(spec: dict[str, Any], status: dict[str, Any] | None) -> None:
    kept, placement = world()
    attended(seen(workload()), placement)
    placement.run_pass(0)
    attended(seen(workload(spec, status)), placement)
    assert (free_gpus(kept, NODE), placement.offered_node(UID)) == (4, None)


def test_a_lost_attempt_gives_its_capacity_back_before_the_next_is_placed() -> None:
    kept, placement = world()
    attended(seen(workload(status=SCHEDULED), job=job()), placement)
    lost = {"phase": "Pending", "jobName": "eval-job", "avoidedNode": NODE}
    attended(seen(workload(status=lost)), placement)
    assert free_gpus(kept, NODE) == 4


def test_what_is_asked_for_is_what_the_spec_says() -> None:
    spec = {"gpuCount": 4, "priority": 7, "schedulingStrategy": "random"}
    status = {"phase": "Pending", "jobName": "eval-job-2", "avoidedNode": "gpu-9"}
    asked = request_for(seen(workload(spec, status)), SHAPE)
    assert (asked.gpus, asked.priority, asked.strategy, asked.avoided) == (4, 7, "random", ("gpu-9",))
    assert (asked.reservation_id, asked.since, str(asked.key)) == (f"{UID}-3", stamp(-60), "ml/eval")


def test_an_attempt_that_is_under_way_keeps_its_reservation_id() -> None:
    assert request_for(seen(workload(status={**RUNNING, "jobName": "eval-job-2"})), SHAPE).reservation_id == f"{UID}-2"


class TestTheWayToItsNode:
    def test_each_step_has_its_own_time(self) -> None:
        """One whose Job could be made only late is not late with its pod."""
        _, placement = world()
        for step, began_s in ((CHOSEN_ALONE, 0), (STARTED, 100), (TURNED_AWAY, 200)):
            assert attended(step, placement, began_s)[0].pending_s == 0
            assert attended(step, placement, began_s + 90)[0].pending_s == 90

    def test_late_is_what_takes_longer_than_usual(self) -> None:
        _, placement = world()
        assert not attended(STARTED, placement)[0].is_late
        assert attended(STARTED, placement, TIMING.explain_s)[0].is_late

    def test_the_next_attempt_begins_anew_and_the_capacity_of_the_one_before_is_free(self) -> None:
        """Also where nobody saw what was between: news may skip states."""
        kept, placement = world()
        attended(TURNED_AWAY, placement)
        after = seen(workload(status={**SCHEDULED, "jobName": "eval-job-1"}), job=job("eval-job-1"))
        assert attended(after, placement, 500)[0].pending_s == 0
        assert free_gpus(kept, NODE) == 2

    @pytest.mark.parametrize("observed", [CHOSEN_ALONE, STARTED, TURNED_AWAY], ids=["Job", "pod", "room"])
    def test_capacity_is_reserved_while_the_workload_is_reconciled_and_not_for_ever_after(
        self, observed: GPUWorkloadSnapshot
    ) -> None:
        kept, placement = world()
        looks = [TIMING.bind_timeout_s * number for number in range(20)]
        for now_s in looks:
            attended(observed, placement, now_s)
            placement.run_pass(now_s)
            assert free_gpus(kept, NODE) == 2
        placement.run_pass(looks[-1] + TIMING.reservation_timeout_s)
        assert free_gpus(kept, NODE) == 4

    def test_a_reconcile_that_comes_too_late_takes_the_capacity_again(self) -> None:
        kept, placement = world()
        attended(STARTED, placement)
        placement.run_pass(TIMING.reservation_timeout_s)
        assert free_gpus(kept, NODE) == 4
        attended(STARTED, placement, TIMING.reservation_timeout_s)
        assert free_gpus(kept, NODE) == 2

    def test_looking_often_changes_nothing_for_others(self) -> None:
        kept, placement = world()
        attended(STARTED, placement)
        version = kept.version
        for now_s in range(100):
            attended(STARTED, placement, now_s)
        assert kept.version == version


@pytest.mark.parametrize(
    ("observed", "step", "looks_s"),
    [
        (seen(workload()), "", []),
        (seen(workload(status=RUNNING), job=job(), pods=(pod(),)), "", []),
        (CHOSEN_ALONE, "Job", [90, 120]),
        (seen(workload(status=SCHEDULED), job=job(deleted=True)), "Job", [90, 120]),
        (seen(workload(status=SCHEDULED), job=job(started=None)), "Job controller", [90, 120]),
        (STARTED, "pod", [90, 120]),
        (seen(workload(status=SCHEDULED), job=job(), pods=(pod("Pending", on=""),)), "scheduler", [90, 120]),
        (TURNED_AWAY, "room", [90, 120]),
        (seen(workload(status=SCHEDULED), job=job(), nodes=(silent(NODE, ready=False),)), "node", [120]),
    ],
)
def test_what_is_waited_for_is_looked_at_again_in_time(
    observed: GPUWorkloadSnapshot, step: str, looks_s: list[float]
) -> None:
    assert pending_step(observed) == step
    assert list(recheck_in_s(structs.replace(observed, pending_s=30.0), TIMING)) == looks_s
    first = list(recheck_in_s(observed, TIMING))
    assert (TIMING.explain_s in first) is (step in ("pod", "node"))
