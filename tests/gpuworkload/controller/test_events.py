"""What a GPUWorkload's user is told: the step from one status to the next → events."""

from typing import Any

import msgspec
import pytest

from holdfast.api.gpuworkload import GPUWorkloadStatus
from holdfast.gpuworkload.metrics import events_for
from tests.gpuworkloads import workload

JSON = dict[str, Any]
CHOSEN: JSON = {"assignedNode": "gpu-3", "jobName": "eval-job"}


def status(phase: str, why: str = "", **more: Any) -> JSON:
    condition = {"type": "Running", "status": "False", "reason": why, "message": "", "lastTransitionTime": ""}
    return {"phase": phase, "conditions": [condition], **more}


WAITS = status("Pending", "NoRoom", message="no node has any free; 1st in line")
SCHEDULING = status("Scheduling", "NodeChosen", **CHOSEN)
SCHEDULED = status("Scheduled", "PodStarting", **CHOSEN)
RUNNING = status("Running", "PodRunning", message="running on gpu-3", **CHOSEN)
STEPS: list[tuple[JSON | None, JSON, list[tuple[str, str]]]] = [
    (None, WAITS, [("Waiting", "no node has any free; 1st in line")]),
    (WAITS, {**WAITS, "message": "2nd in line"}, []),
    (WAITS, status("Pending", "NeverFits", message="the largest has 8"), [("Waiting", "the largest has 8")]),
    (WAITS, SCHEDULING, [("NodeChosen", "leastLoaded chose gpu-3 for Job eval-job")]),
    (SCHEDULING, {**SCHEDULING, **status("Scheduling", "JobNotMade", message="taken")}, [("JobNotMade", "taken")]),
    (SCHEDULING, SCHEDULED, []),
    (SCHEDULED, RUNNING, [("Started", "running on gpu-3")]),
    (RUNNING, RUNNING, []),
    (RUNNING, status("Pending", "BackingOff", retryCount=1, message="exit 3"), [("Retrying", "retry 1: exit 3")]),
    (RUNNING, status("Pending", "NodeLost", message="gpu-3 is gone"), [("Replacing", "gpu-3 is gone")]),
    (RUNNING, status("Pending", "Suspended", message="stopped"), [("Suspended", "stopped")]),
    (RUNNING, status("Succeeded", "Completed", message="well done", **CHOSEN), [("Succeeded", "well done")]),
    (RUNNING, status("Failed", "RetriesExhausted", message="exit 3", **CHOSEN), [("Failed", "exit 3")]),
]


@pytest.mark.parametrize(("before", "after", "expected"), STEPS)
def test_each_step_has_one_event(before: JSON | None, after: JSON, expected: list[tuple[str, str]]) -> None:
    told = events_for(workload(status=before), msgspec.convert(after, GPUWorkloadStatus))
    assert [(item.reason, item.message) for item in told] == expected


@pytest.mark.parametrize(("phase", "warns"), [("Failed", True), ("Succeeded", False)])
def test_what_a_user_may_have_to_mend_is_a_warning(phase: str, warns: bool) -> None:
    after = msgspec.convert(status(phase, "x", message="y"), GPUWorkloadStatus)
    assert [item.warning for item in events_for(workload(status=RUNNING), after)] == [warns]


@pytest.mark.parametrize(("message", "warns"), [("making its Job for gpu-3", False), ("its Job is refused", True)])
def test_a_job_that_is_being_made_is_no_warning(message: str, warns: bool) -> None:
    after = {**SCHEDULING, **status("Scheduling", "JobNotMade", message=message)}
    (item,) = events_for(workload(status=SCHEDULING), msgspec.convert(after, GPUWorkloadStatus))
    assert item.warning == warns
