"""What this operator has heard of an attempt's workers, by its own clock; nothing of it outlives the operator."""

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from holdfast.reports.wire import Progress, WorkerReport

ProgressPoint: TypeAlias = tuple[int, int]


class WorkerReports(Struct, frozen=True):
    """Of one worker."""

    heard_s: float
    point: ProgressPoint | None = None
    """How far it was when it last told of progress."""
    saves_on_notice: bool = False
    """Its training saves when it is asked to."""
    gpu_percent: float | None = None
    """The utilization of its GPUs; None while it is unknown."""


class AttemptReports(Struct, frozen=True):
    attempt: int
    first_s: float
    progress_s: float
    """When progress was last told of, or the first word if there was none yet."""
    workers: Mapping[int, WorkerReports] = {}
    """By the worker's index."""


def record_report(before: AttemptReports | None, batch: WorkerReport, now_s: float) -> AttemptReports:
    """A report that tells once more what it told before is a sign of life and no progress."""
    old = before if before is not None and before.attempt == batch.attempt else None
    voice = old.workers.get(batch.index) if old is not None else None
    told = _point(batch.progress[-1]) if batch.progress else None
    is_progress = told is not None and (voice is None or told != voice.point)
    new = WorkerReports(
        now_s,
        told or (voice.point if voice is not None else None),
        batch.saves_on_notice,
        batch.gpu_utilization_percent,
    )
    return AttemptReports(
        attempt=batch.attempt,
        first_s=old.first_s if old is not None else now_s,
        progress_s=now_s if is_progress or old is None else old.progress_s,
        workers={**(old.workers if old is not None else {}), batch.index: new},
    )


def gpu_utilization_percent(heard: AttemptReports | None, now_s: float, silent_s: float) -> float | None:
    """The mean over the workers that report one and are not silent; None where none does."""
    workers = heard.workers.values() if heard is not None else ()
    known = [
        voice.gpu_percent for voice in workers if voice.gpu_percent is not None and now_s - voice.heard_s < silent_s
    ]
    return round(sum(known) / len(known), 1) if known else None


def _point(entry: Progress) -> ProgressPoint:
    """Epochs done and steps beyond them. It may go back: a training that was suspended goes on from a checkpoint."""
    return (entry.epoch, 0) if entry.step is None else (entry.epoch - 1, entry.step)
