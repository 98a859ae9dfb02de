"""What this operator has heard of an attempt's workers, by its own clock; nothing of it outlives the operator."""

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from holdfast.reports.wire import Batch, Progress

Point: TypeAlias = tuple[int, int]


class Voice(Struct, frozen=True):
    """Of one worker."""

    heard_s: float
    point: Point | None = None
    """How far it was when it last told of progress."""
    heeds: bool = False
    """Its training saves when it is asked to."""
    gpu_percent: float | None = None
    """The utilization of its GPUs; None while it is unknown."""


class Heard(Struct, frozen=True):
    attempt: int
    first_s: float
    progress_s: float
    """When progress was last told of, or the first word if there was none yet."""
    voices: Mapping[int, Voice] = {}
    """By the worker's index."""


def listen(before: Heard | None, batch: Batch, now_s: float) -> Heard:
    """A report that tells once more what it told before is a sign of life and no progress."""
    old = before if before is not None and before.attempt == batch.attempt else None
    voice = old.voices.get(batch.index) if old is not None else None
    told = _point(batch.progress[-1]) if batch.progress else None
    is_progress = told is not None and (voice is None or told != voice.point)
    new = Voice(now_s, told or (voice.point if voice is not None else None), batch.heeds, batch.gpu_utilization_percent)
    return Heard(
        attempt=batch.attempt,
        first_s=old.first_s if old is not None else now_s,
        progress_s=now_s if is_progress or old is None else old.progress_s,
        voices={**(old.voices if old is not None else {}), batch.index: new},
    )


def gpu_utilization_percent(heard: Heard | None, now_s: float, silent_s: float) -> float | None:
    """The mean over the workers that report one and are not silent; None where none does."""
    voices = heard.voices.values() if heard is not None else ()
    known = [
        voice.gpu_percent for voice in voices if voice.gpu_percent is not None and now_s - voice.heard_s < silent_s
    ]
    return round(sum(known) / len(known), 1) if known else None


def _point(entry: Progress) -> Point:
    """Epochs done and steps beyond them. It may go back: a training that was suspended goes on from a checkpoint."""
    return (entry.epoch, 0) if entry.step is None else (entry.epoch - 1, entry.step)
