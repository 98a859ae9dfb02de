"""Which checkpoints may be deleted: those that no resume needs, and never the best one or one being written."""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from holdfast.checkpoints.errors import UnsafeContent
from holdfast.checkpoints.manifest import CheckpointName
from holdfast.checkpoints.resume import Fence
from holdfast.checkpoints.store import CheckpointStore

# The metric that selects the best checkpoint: the highest accuracy, or the lowest loss.
Metric: TypeAlias = Literal["accuracy", "loss"]


class StoredCheckpoint(NamedTuple):
    """A checkpoint in the store; `valid` means that it has a usable manifest.

    fenced: a later attempt had begun further back when the checkpoint was saved, so the checkpoint is not a part of the
    job's history.
    """

    name: CheckpointName
    valid: bool
    fenced: bool = False
    metrics: Mapping[str, float] = {}

    @property
    def is_resumable(self) -> bool:
        """Whether an attempt may resume from the checkpoint."""
        return self.valid and not self.fenced


def stored_checkpoints(store: CheckpointStore, until: int) -> list[StoredCheckpoint]:
    """Every checkpoint of the attempts up to `until`, newest first."""
    fence = Fence(store)
    return [_stored_checkpoint(store, fence, name) for name in store.names(until)]


def best(checkpoints: Iterable[StoredCheckpoint], by: Metric) -> StoredCheckpoint | None:
    """The valid checkpoint with the best metric, the newer of equal ones; None if none has the metric, or only NaN."""
    scored = [
        (_score(checkpoint, by), checkpoint.name, checkpoint)
        for checkpoint in checkpoints
        if checkpoint.is_resumable and by in checkpoint.metrics
    ]
    finite = [entry for entry in scored if math.isfinite(entry[0])]
    return max(finite, key=lambda entry: entry[:2])[2] if finite else None


def expired(
    checkpoints: Iterable[StoredCheckpoint],
    keep: int,
    attempt: int,
    needed: Collection[CheckpointName] = (),
    by: Metric = "loss",
) -> list[CheckpointName]:
    """The checkpoints to delete when the newest `keep` valid epochs and the best one stay, oldest first.

    attempt: the attempt of the calling sidecar. Checkpoints of a newer attempt, and those of its own attempt without a
    manifest, are never deleted.
    needed: checkpoints that a worker may be reading now, such as the one that the attempt resumes from.
    """
    candidates = sorted(
        (checkpoint for checkpoint in checkpoints if checkpoint.name.attempt <= attempt),
        key=lambda checkpoint: checkpoint.name,
        reverse=True,
    )
    oldest = _oldest_retained_epoch((checkpoint for checkpoint in candidates if checkpoint.is_resumable), keep)
    # Fenced checkpoints do no harm, but a worker on a partitioned node may go on saving without end.
    oldest_fenced = max(
        oldest,
        _oldest_retained_epoch(
            (checkpoint for checkpoint in candidates if checkpoint.valid and checkpoint.fenced), keep
        ),
    )
    duplicates = _duplicate_copies(candidates, attempt)
    best_checkpoint = best(candidates, by)
    retained = {*needed, *({best_checkpoint.name} if best_checkpoint is not None else ())}
    return [
        checkpoint.name
        for checkpoint in reversed(candidates)
        if (checkpoint.name.epoch < (oldest_fenced if checkpoint.fenced else oldest) or checkpoint.name in duplicates)
        and (checkpoint.valid or checkpoint.name.attempt < attempt)
        and checkpoint.name not in retained
    ]


def _score(checkpoint: StoredCheckpoint, by: Metric) -> float:
    return checkpoint.metrics[by] if by == "accuracy" else -checkpoint.metrics[by]


def _oldest_retained_epoch(checkpoints: Iterable[StoredCheckpoint], keep: int) -> int:
    """The first epoch that stays. With fewer than `keep` epochs all stay: some checkpoints may yet become complete."""
    epochs = sorted({checkpoint.name.epoch for checkpoint in checkpoints}, reverse=True)[: max(keep, 1)]
    return epochs[-1] if len(epochs) == max(keep, 1) else -1


def _duplicate_copies(newest_first: Iterable[StoredCheckpoint], attempt: int) -> set[CheckpointName]:
    """Every attempt gets a copy of the checkpoint that it resumes from; one copy in the finished attempts is enough.

    The copy of the current attempt does not replace it: the training may save anew under that name, and be killed.
    """
    seen_epochs, duplicates = set[int](), set[CheckpointName]()
    for checkpoint in newest_first:
        if not checkpoint.is_resumable or checkpoint.name.attempt == attempt:
            continue
        if checkpoint.name.epoch in seen_epochs:
            duplicates.add(checkpoint.name)
        seen_epochs.add(checkpoint.name.epoch)
    return duplicates


def _stored_checkpoint(store: CheckpointStore, fence: Fence, name: CheckpointName) -> StoredCheckpoint:
    try:
        manifest = store.manifest(name)
    except UnsafeContent:
        return StoredCheckpoint(name, valid=False)
    if manifest is None:
        return StoredCheckpoint(name, valid=False)
    fenced = fence.superseded_by(name, manifest.about.job) is not None
    return StoredCheckpoint(name, valid=True, fenced=fenced, metrics=manifest.metrics)
