"""When to look again."""

from typing import Any

import pytest

from holdfast.gpuworkload.decision import expiry, requeue_at
from holdfast.gpuworkload.snapshot import TIMING, GPUWorkloadSnapshot
from tests.gpuworkloads import NODE, RUNNING, SCHEDULED, job, pod, seen, workload
from tests.trainingjobs import at, node, stamp


def ended(kind: str = "Succeeded", ttl_s: int | None = 100) -> dict[str, Any]:
    condition = {"type": kind, "status": "True", "reason": "X", "message": "", "lastTransitionTime": stamp(50)}
    return {"spec": {"ttlSecondsAfterFinished": ttl_s}, "status": {"phase": kind, "conditions": [condition]}}


@pytest.mark.parametrize(
    ("observed", "seconds", "due"),
    [
        (seen(workload()), 0, None),
        (seen(workload(status={"phase": "Pending", "nextRetryTime": stamp(60)})), 0, 60),
        (seen(workload(status={"phase": "Pending", "nextRetryTime": stamp(60)})), 60, None),
        (seen(workload(status=SCHEDULED), job=job()), 0, None),
        (seen(workload(status=SCHEDULED), job=job(), pods=(pod("Pending"),)), 0, None),
        (seen(workload(status=RUNNING), job=job(), pods=(pod(),)), 0, None),
        (
            seen(workload(), old_pods=(pod(deleted_at=40),), nodes=(node(NODE, ready=False),)),
            0,
            40 + TIMING.lost_pod_timeout_s,
        ),
        (seen(workload(), old_pods=(pod(deleted_at=40),)), 0, None),
        (seen(workload(**ended())), 60, 150),
        (seen(workload(**ended("Failed"))), 60, 150),
        (seen(workload(**ended())), 150, None),
        (seen(workload(**ended())), 150 + 3600, None),  # a clock that was set forward, and one that was set back
        (seen(workload(**ended())), 60 - 3600, 150),
        (seen(workload(**ended(ttl_s=None))), 60, None),
    ],
)
def test_the_next_moment_at_which_something_may_be_decided(
    observed: GPUWorkloadSnapshot, seconds: float, due: float | None
) -> None:
    assert requeue_at(observed, at(seconds), TIMING) == (at(due) if due is not None else None)


def test_a_workload_expires_by_the_time_of_its_end() -> None:
    assert expiry(workload(**ended())) == at(150)
    assert expiry(workload({"ttlSecondsAfterFinished": 0})) is None
