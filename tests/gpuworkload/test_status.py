"""What the status says, for every course."""

from typing import Any

import msgspec
import pytest

from holdfast.api.gpuworkload import GPUWorkloadStatus
from holdfast.decisions import MAX_MESSAGE, reason_of
from holdfast.gpuworkload.decision import decide
from holdfast.gpuworkload.snapshot import TIMING, GPUWorkloadSnapshot, last_attempt, reservation_id
from holdfast.gpuworkload.status import next_status
from holdfast.scheduling.messages import WaitMessage
from holdfast.times import parse_time
from tests.gpuworkloads import CHOSEN, NODE, RUNNING, SCHEDULED, failed, job, pending, pod, seen, workload
from tests.trainingjobs import UID, at, stamp


def shown(observed: GPUWorkloadSnapshot, seconds: float = 70) -> dict[str, Any]:
    """The status after the course that is decided on, without its conditions."""
    status = settled(observed, seconds)
    body: dict[str, Any] = msgspec.to_builtins(status)
    return {name: value for name, value in body.items() if name not in ("conditions", "observedGeneration")}


def settled(observed: GPUWorkloadSnapshot, seconds: float = 70) -> GPUWorkloadStatus:
    return next_status(observed, decide(observed, at(seconds), TIMING), at(seconds))


def conditions(status: GPUWorkloadStatus) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in status.conditions}


def tried(status: dict[str, Any] = RUNNING, spec: dict[str, Any] | None = None, **facts: Any) -> GPUWorkloadSnapshot:
    return seen(workload(spec, status), **{"job": job(), **facts})


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (seen(workload()), {}),
        (seen(workload(), wait=WaitMessage(message="needs 2")), {"phase": "Pending", "message": "needs 2"}),
        (
            seen(workload({"suspend": True})),
            {"phase": "Pending", "message": "spec.suspend is true; set it to false to go on"},
        ),
        (
            seen(workload(), offered_node="gpu-7"),
            {
                "phase": "Scheduling",
                "assignedNode": "gpu-7",
                "jobName": "eval-job",
                "lastScheduleTime": stamp(70),
                "message": "making its Job for gpu-7",
            },
        ),
        (tried(CHOSEN, job=None), {**CHOSEN, "message": f"making its Job for {NODE}"}),
        (tried(CHOSEN, job=None, blocked_by="the name is taken"), {**CHOSEN, "message": "the name is taken"}),
        (tried(CHOSEN), {**SCHEDULED, "message": f"waiting for its pod to start on {NODE}"}),
        (tried(SCHEDULED, pods=(pod("Pending"),)), {**SCHEDULED, "message": f"waiting for its pod to start on {NODE}"}),
        (
            tried(SCHEDULED, pods=(pending("1 node is too full."),)),
            {**SCHEDULED, "message": f"its pod can't start on {NODE} yet: 1 node is too full."},
        ),
        (tried(SCHEDULED, pods=(pod(),)), {**RUNNING, "message": f"running on {NODE}"}),
        (tried(SCHEDULED, pods=(pod("Succeeded"),)), {**RUNNING, "message": f"running on {NODE}"}),
        (tried(RUNNING), {**RUNNING, "message": f"running on {NODE}"}),
        (
            tried(job=job("eval-job", "Complete")),
            {**RUNNING, "phase": "Succeeded", "message": f"the workload succeeded on {NODE}"},
        ),
        (tried(CHOSEN, job=None, rejected_reason="no"), {**CHOSEN, "phase": "Failed", "message": "no"}),
    ],
)
def test_the_status_after_each_action(observed: GPUWorkloadSnapshot, expected: dict[str, Any]) -> None:
    assert shown(observed) == expected


def test_a_failure_is_counted_and_its_next_attempt_is_written_down() -> None:
    status = shown(tried({**RUNNING, "retryCount": 1}, {"retryPolicy": {"backoffSeconds": 10}}, pods=(failed(3),)))
    due = status.pop("nextRetryTime")
    wait_s = round((parse_time(due) - at(70)).total_seconds())
    assert status == {
        "phase": "Pending",
        "jobName": "eval-job",
        "lastScheduleTime": stamp(0),
        "retryCount": 2,
        "avoidedNode": NODE,
        "message": f"its pod on {NODE} exited with code 3; next try at {due} (in {wait_s} s)",
    }
    assert stamp(70 + 18) <= due <= stamp(70 + 23)


def test_a_lost_node_is_not_counted_and_the_next_is_looked_for_at_once() -> None:
    assert shown(tried(nodes=())) == {
        "phase": "Pending",
        "jobName": "eval-job",
        "lastScheduleTime": stamp(0),
        "avoidedNode": NODE,
        "message": f"node {NODE} is gone; looking for another node",
    }


def test_while_it_backs_off_nothing_is_written() -> None:
    again = settled(tried(pods=(failed(3),)))
    observed = seen(workload(status=msgspec.to_builtins(again)), job=job("eval-job", "Failed"), pods=(failed(3),))
    assert settled(observed, 75) == again


def test_the_next_attempt_has_the_next_number_and_nothing_more_to_avoid() -> None:
    status = {
        "phase": "Pending",
        "jobName": "eval-job-3",
        "retryCount": 1,
        "avoidedNode": NODE,
        "nextRetryTime": stamp(9),
    }
    assert shown(seen(workload(status=status), offered_node="gpu-7")) == {
        "phase": "Scheduling",
        "assignedNode": "gpu-7",
        "jobName": "eval-job-4",
        "lastScheduleTime": stamp(70),
        "retryCount": 1,
        "message": "making its Job for gpu-7",
    }


def test_suspending_gives_the_node_back() -> None:
    status = shown(tried(spec={"suspend": True}, pods=(pod(),)))
    assert (status["phase"], status.get("assignedNode")) == ("Pending", None)
    assert status["message"] == "spec.suspend is true: its pod is being stopped"


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (
            seen(workload(), wait=WaitMessage(message="x")),
            {"Scheduled": ("False", "NoRoom"), "Running": ("False", "NoRoom")},
        ),
        (
            seen(workload(), wait=WaitMessage(message="x", never=True)),
            {"Scheduled": ("False", "NeverFits"), "Running": ("False", "NeverFits")},
        ),
        (tried(CHOSEN), {"Scheduled": ("True", "PodStarting"), "Running": ("False", "PodStarting")}),
        (
            tried(SCHEDULED, pods=(pod(),)),
            {"Scheduled": ("True", "PodRunning"), "Running": ("True", "PodRunning")},
        ),
        (
            tried(job=job("eval-job", "Complete")),
            {"Scheduled": ("True", "Completed"), "Running": ("False", "Completed"), "Succeeded": ("True", "Completed")},
        ),
        (
            tried({**RUNNING, "retryCount": 3}, pods=(failed(3),)),
            {
                "Scheduled": ("False", "RetriesExhausted"),
                "Running": ("False", "RetriesExhausted"),
                "Failed": ("True", "RetriesExhausted"),
            },
        ),
    ],
)
def test_conditions_say_the_same_as_the_phase(
    observed: GPUWorkloadSnapshot, expected: dict[str, tuple[str, str]]
) -> None:
    status = settled(observed)
    assert conditions(status) == expected
    assert reason_of(status) == expected["Running"][1]
    assert {each.observed_generation for each in status.conditions} == {status.observed_generation} == {3}


def test_a_condition_keeps_the_time_of_its_change() -> None:
    first = settled(tried(CHOSEN), 10)
    later = settled(tried(msgspec.to_builtins(first), pods=(pod(),)), 50)
    times = {each.type: each.last_transition_time for each in later.conditions}
    assert times == {"Scheduled": stamp(10), "Running": stamp(50)}


@pytest.mark.parametrize(
    "observed",
    [
        seen(workload(), wait=WaitMessage(message="x")),
        tried(CHOSEN),
        tried(SCHEDULED, pods=(pod(),)),
        tried(job=job("eval-job", "Complete")),
        tried({**RUNNING, "retryCount": 3}, pods=(failed(3),)),
    ],
)
def test_a_second_look_changes_nothing(observed: GPUWorkloadSnapshot) -> None:
    status = settled(observed, 70)
    again = msgspec.structs.replace(observed, workload=workload(status=msgspec.to_builtins(status)))
    assert settled(again, 99) == status


def test_a_message_fits_into_the_schema() -> None:
    status = settled(tried(CHOSEN, job=None, rejected_reason="x" * 100_000))
    assert len(status.message or "") == MAX_MESSAGE
    assert max(len(each.message) for each in status.conditions) == MAX_MESSAGE


@pytest.mark.parametrize(
    ("name", "number"), [(None, -1), ("eval-job", 0), ("eval-job-1", 1), ("eval-job-12", 12), ("something-else", 0)]
)
def test_the_number_of_an_attempt_is_in_the_name_of_its_job(name: str | None, number: int) -> None:
    assert last_attempt(workload(status={"jobName": name})) == number


def test_a_reservation_id_is_a_label_and_the_same_for_no_other_attempt() -> None:
    places = {reservation_id(workload(), number) for number in range(3)}
    assert places == {f"{UID}-0", f"{UID}-1", f"{UID}-2"}
    assert len(reservation_id(workload(), 10**9)) < 64
