"""Reports for tests: every function takes only what the test is about."""

from typing import Any

from holdfast.api.reports import CheckpointReport, Outcome, ProgressReport, Resumed, WorkerReport
from tests.trainingjobs import UID

# By the sidecar's clock, which is not the operator's.
SENT_AT = 5_000.0


def batch(*progress: ProgressReport, sequence: int = 2, age_s: float = 0.0, **more: Any) -> WorkerReport:
    """Of worker 0 of the job `ml/bert`; entries that say nothing else are `age_s` old."""
    told: dict[str, Any] = {"job": "bert", "namespace": "ml", "uid": UID, "attempt": 0, "index": 0, "run": "r"}
    return WorkerReport(**{**told, **more}, sequence=sequence, sent_at=SENT_AT + age_s, progress=progress)


def ended(epoch: int, *, of: int | None = None, at: float = SENT_AT, **metrics: float) -> ProgressReport:
    return ProgressReport(epoch=epoch, total_epochs=of, metrics=metrics, at=at)


def step(
    epoch: int, step: int, steps: int | None = None, *, of: int | None = None, at: float = SENT_AT, **metrics: float
) -> ProgressReport:
    return ProgressReport(epoch=epoch, step=step, steps=steps, total_epochs=of, metrics=metrics, at=at)


def checkpoint(epoch: int, outcome: Outcome = "completed", *, at: float = SENT_AT, **more: Any) -> CheckpointReport:
    return CheckpointReport(path=f"attempt-0/checkpoint-epoch-{epoch}", epoch=epoch, outcome=outcome, at=at, **more)


def resumed(epoch: int) -> Resumed:
    return Resumed(path=f"attempt-1/checkpoint-epoch-{epoch}", epoch=epoch)
