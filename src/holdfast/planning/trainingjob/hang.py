"""A training that lives and does not get on.

Only what was heard counts: while the workers' reports do not arrive, nobody can say that there is no progress. Times
are of the operator's own clock, in seconds; hearing begins when the operator begins to lead and its server answers.
"""

from collections.abc import Collection

from holdfast.api.trainingjob import TrainingJob
from holdfast.planning.trainingjob.classes import WorkerFailure
from holdfast.planning.trainingjob.heard import AttemptReports


def find_hang(
    job: TrainingJob,
    heard: AttemptReports | None,
    running: Collection[int],
    *,
    running_since_s: float,
    hearing_since_s: float,
) -> WorkerFailure | None:
    """`running` are the indexes of the workers that have not ended, since `running_since_s` all of them."""
    limit_s = job.spec.progress_deadline_seconds
    if (
        limit_s is None
        or heard is None
        or not _is_current_attempt(job, heard)
        or not set(running) <= heard.workers.keys()
    ):
        return None
    if not running or job.status is None or job.status.state != "Running":
        return None
    heard_s = min(heard.workers[index].heard_s for index in running)
    silent_s = heard_s - _since_s(heard, running_since_s, hearing_since_s)
    if silent_s < limit_s:
        return None
    epoch = f", after epoch {job.status.current_epoch}" if job.status.current_epoch is not None else ""
    message = f"the workers live and no progress was reported for {silent_s:.0f} s{epoch}"
    return WorkerFailure(cause="hang", message=f"{message} (progressDeadlineSeconds is {limit_s})")


def hang_due_s(
    job: TrainingJob, heard: AttemptReports | None, *, running_since_s: float, hearing_since_s: float
) -> float | None:
    """When to look again, if nothing is heard until then."""
    limit_s = job.spec.progress_deadline_seconds
    if limit_s is None or heard is None or not _is_current_attempt(job, heard):
        return None
    return _since_s(heard, running_since_s, hearing_since_s) + limit_s


def _since_s(heard: AttemptReports, running_since_s: float, hearing_since_s: float) -> float:
    return max(heard.progress_s, running_since_s, hearing_since_s)


def _is_current_attempt(job: TrainingJob, heard: AttemptReports) -> bool:
    return job.status is not None and heard.attempt == job.status.restart_count
