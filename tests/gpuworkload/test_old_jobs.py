"""Which Jobs of a workload are to be deleted, and which stay to be looked at."""

import pytest

from holdfast.api.core.objects import Job, Pod
from tests.gpuworkloads import RUNNING, failed, job, pod, seen, workload

WAITING = {**RUNNING, "phase": "Pending", "assignedNode": None}
SECOND = {**RUNNING, "jobName": "eval-job-1"}


@pytest.mark.parametrize(
    ("last", "pods"),
    [(job("eval-job", "Failed"), ()), (job("eval-job", "Complete"), (pod("Succeeded"),)), (job(), (failed(),))],
    ids=["failed", "completed", "its pod has failed, and it does not say so yet"],
)
def test_a_job_that_has_ended_stays_until_another_attempt_is_under_way(last: Job, pods: tuple[Pod, ...]) -> None:
    assert seen(workload(status=WAITING), job=last, pods=pods).jobs_to_delete == ()
    made = seen(workload(status=SECOND), job=job("eval-job-1"), old_jobs=(last,), old_pods=pods)
    assert made.jobs_to_delete == (last,)


@pytest.mark.parametrize("pods", [(), (pod("Running"),), (failed(), pod("Running"))])
def test_a_job_that_may_run_on_is_deleted_when_its_attempt_is_over(pods: tuple[Pod, ...]) -> None:
    last = job()
    assert seen(workload(status=WAITING), job=last, pods=pods).jobs_to_delete == (last,)


def test_after_the_end_the_last_job_stays() -> None:
    status = {**SECOND, "phase": "Succeeded"}
    found = seen(workload(status=status), job=job("eval-job-1", "Complete"), old_jobs=(job(),))
    assert [each.metadata.name for each in found.jobs_to_delete] == ["eval-job"]
