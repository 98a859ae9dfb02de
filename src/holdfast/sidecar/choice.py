"""Which checkpoint is to be kept next."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from holdfast.checkpoints.complete import FolderScan
from holdfast.checkpoints.content import FileEntry
from holdfast.checkpoints.names import CheckpointName

RETRY_S, RETRY_CAP_S = 2.0, 60.0


class Failure(Struct, frozen=True):
    """A try that did not work. `again_s` is when the next may begin; None: not before the checkpoint changes."""

    content: tuple[FileEntry, ...]
    tries: int
    again_s: float | None
    reason: str
    lacks_part: bool = False
    """All that is missing is the part of another worker."""


def next_to_persist(
    looks: Sequence[FolderScan],
    done: Mapping[CheckpointName, tuple[FileEntry, ...]],
    failures: Mapping[CheckpointName, Failure],
    *,
    keep: int,
    now_s: float,
    best: CheckpointName | None = None,
) -> FolderScan | None:
    """The newest complete one that is not kept as it is now."""
    for looked in within_retention(looks, keep, best):
        failure = failures.get(looked.name)
        is_due = failure is None or failure.content != looked.content or _is_due(failure, now_s)
        if is_due and done.get(looked.name) != looked.content:
            return looked
    return None


def within_retention(looks: Sequence[FolderScan], keep: int, best: CheckpointName | None = None) -> list[FolderScan]:
    """Those that are complete, newest first, without those that would be deleted at once."""
    complete = sorted((looked for looked in looks if looked.complete), key=lambda looked: looked.name, reverse=True)
    epochs = sorted({looked.name.epoch for looked in complete}, reverse=True)[:keep]
    return [looked for looked in complete if looked.name.epoch in epochs or looked.name == best]


def record_failure(
    before: Failure | None, looked: FolderScan, reason: str, *, now_s: float, passes: bool, lacks_part: bool = False
) -> Failure:
    tries = before.tries + 1 if before is not None and before.content == looked.content else 1
    again_s = now_s + min(RETRY_CAP_S, RETRY_S * 2.0 ** min(tries - 1, 30)) if passes else None
    return Failure(looked.content, tries, again_s, reason, lacks_part)


def _is_due(failure: Failure, now_s: float) -> bool:
    return failure.again_s is not None and now_s >= failure.again_s
