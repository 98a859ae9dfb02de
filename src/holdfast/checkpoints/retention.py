"""Which checkpoints may be deleted: those that no resume will ask for, and never the best or one being written."""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from holdfast.checkpoints.errors import UnsafeContent
from holdfast.checkpoints.manifest import CheckpointName
from holdfast.checkpoints.resume import Fence
from holdfast.checkpoints.store import Store

# What the best checkpoint is chosen by: the highest accuracy, or the lowest loss.
Metric: TypeAlias = Literal["accuracy", "loss"]


class StoredCheckpoint(NamedTuple):
    """A checkpoint as it is found; `valid` means that it has a manifest that can be used.

    fenced: a later attempt had begun further back when it was saved, so that it is no part of the job's history.
    """

    name: CheckpointName
    valid: bool
    fenced: bool = False
    metrics: Mapping[str, float] = {}

    @property
    def is_resumable(self) -> bool:
        """Whether a resume may ask for it."""
        return self.valid and not self.fenced


def stored_checkpoints(store: Store, until: int) -> list[StoredCheckpoint]:
    """Every checkpoint of the attempts up to `until`, newest first."""
    fence = Fence(store)
    return [_found(store, fence, name) for name in store.names(until)]


def best(there: Iterable[StoredCheckpoint], by: Metric) -> StoredCheckpoint | None:
    """The valid one with the best metric, of equal ones the newer; None where none has that metric, as NaN is none."""
    scored = [(_score(found, by), found.name, found) for found in there if found.is_resumable and by in found.metrics]
    finite = [one for one in scored if math.isfinite(one[0])]
    return max(finite, key=lambda one: one[:2])[2] if finite else None


def expired(
    there: Iterable[StoredCheckpoint],
    keep: int,
    attempt: int,
    needed: Collection[CheckpointName] = (),
    by: Metric = "loss",
) -> list[CheckpointName]:
    """What goes when the newest `keep` valid epochs and the best one stay, oldest first.

    attempt: whose sidecar asks. It never touches a newer attempt's, nor what has no manifest yet in its own.
    needed: what a worker may be reading now, such as the checkpoint that the attempt was told to resume from.
    """
    mine = sorted((found for found in there if found.name.attempt <= attempt), key=lambda one: one.name, reverse=True)
    oldest = _oldest_retained_epoch((found for found in mine if found.is_resumable), keep)
    # They are in nobody's way, but a worker that was cut off may save on and on.
    oldest_fenced = max(oldest, _oldest_retained_epoch((found for found in mine if found.valid and found.fenced), keep))
    seconds = _duplicate_copies(mine, attempt)
    top = best(mine, by)
    stays = {*needed, *({top.name} if top is not None else ())}
    return [
        found.name
        for found in reversed(mine)
        if (found.name.epoch < (oldest_fenced if found.fenced else oldest) or found.name in seconds)
        and (found.valid or found.name.attempt < attempt)
        and found.name not in stays
    ]


def _score(found: StoredCheckpoint, by: Metric) -> float:
    return found.metrics[by] if by == "accuracy" else -found.metrics[by]


def _oldest_retained_epoch(found: Iterable[StoredCheckpoint], keep: int) -> int:
    """The first epoch that stays. With fewer than may stay, nothing is old: some may yet turn out to be whole."""
    epochs = sorted({one.name.epoch for one in found}, reverse=True)[: max(keep, 1)]
    return epochs[-1] if len(epochs) == max(keep, 1) else -1


def _duplicate_copies(newest_first: Iterable[StoredCheckpoint], attempt: int) -> set[CheckpointName]:
    """Every attempt is given a copy of what it resumes from; of the attempts that are over, one copy is enough.

    That of the attempt itself does not replace it: the training may save anew under that name, and be killed.
    """
    first, seconds = set[int](), set[CheckpointName]()
    for found in newest_first:
        if not found.is_resumable or found.name.attempt == attempt:
            continue
        if found.name.epoch in first:
            seconds.add(found.name)
        first.add(found.name.epoch)
    return seconds


def _found(store: Store, fence: Fence, name: CheckpointName) -> StoredCheckpoint:
    try:
        manifest = store.manifest(name)
    except UnsafeContent:
        return StoredCheckpoint(name, valid=False)
    if manifest is None:
        return StoredCheckpoint(name, valid=False)
    fenced = fence.superseded_by(name, manifest.about.job) is not None
    return StoredCheckpoint(name, valid=True, fenced=fenced, metrics=manifest.metrics)
