"""Which checkpoint is to be kept next."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from holdfast.checkpoints.complete import Looked
from holdfast.checkpoints.content import Entry
from holdfast.checkpoints.names import Name

RETRY_S, RETRY_CAP_S = 2.0, 60.0


class Failure(Struct, frozen=True):
    """A try that did not work. `again_s` is when the next may begin; None: not before the checkpoint changes."""

    content: tuple[Entry, ...]
    tries: int
    again_s: float | None
    reason: str
    lacks_part: bool = False
    """All that is missing is the part of another worker."""


def next_to_keep(
    looks: Sequence[Looked],
    done: Mapping[Name, tuple[Entry, ...]],
    failures: Mapping[Name, Failure],
    *,
    keep: int,
    now_s: float,
    best: Name | None = None,
) -> Looked | None:
    """The newest complete one that is not kept as it is now."""
    for looked in wanted(looks, keep, best):
        failure = failures.get(looked.name)
        is_due = failure is None or failure.content != looked.content or _is_due(failure, now_s)
        if is_due and done.get(looked.name) != looked.content:
            return looked
    return None


def wanted(looks: Sequence[Looked], keep: int, best: Name | None = None) -> list[Looked]:
    """Those that are complete, newest first, without those that would be deleted at once."""
    complete = sorted((looked for looked in looks if looked.complete), key=lambda looked: looked.name, reverse=True)
    epochs = sorted({looked.name.epoch for looked in complete}, reverse=True)[:keep]
    return [looked for looked in complete if looked.name.epoch in epochs or looked.name == best]


def failed(
    before: Failure | None, looked: Looked, reason: str, *, now_s: float, passes: bool, lacks_part: bool = False
) -> Failure:
    tries = before.tries + 1 if before is not None and before.content == looked.content else 1
    again_s = now_s + min(RETRY_CAP_S, RETRY_S * 2.0 ** min(tries - 1, 30)) if passes else None
    return Failure(looked.content, tries, again_s, reason, lacks_part)


def _is_due(failure: Failure, now_s: float) -> bool:
    return failure.again_s is not None and now_s >= failure.again_s
