"""The work itself, on a store that can be reached from this process."""

import re
from collections.abc import Iterator

from msgspec.structs import replace

from holdfast.checkpoints import manifest as manifests
from holdfast.checkpoints.errors import CheckpointNotFound, Corrupt, UnsafeContent
from holdfast.checkpoints.manifest import QUARANTINE, CheckpointName, File, Manifest, parse
from holdfast.checkpoints.resume import DecisionPending, Fence, read_decision
from holdfast.checkpoints.retention import Metric, StoredCheckpoint, best, expired, stored_checkpoints
from holdfast.checkpoints.store import Store
from holdfast.checkpoints.store import require_manifest as stored
from holdfast.checkpoints.unpack import map_in_threads, verify_stream
from holdfast.cli.checkpoints.messages import (
    CheckpointInfo,
    Fact,
    ListRequest,
    PruneRequest,
    PruneResult,
    Request,
    State,
    VerifyRequest,
    VerifyResult,
    Which,
)
from holdfast.cli.checkpoints.view import StorageView
from holdfast.errors import HoldfastError

EVERY_ATTEMPT = 10**9 - 1
WORKERS = 3
ASIDE = re.compile(r"(attempt-[0-9]+)-(checkpoint-epoch-[0-9]+)(?:-[0-9]+)?")


class UnsafePrune(HoldfastError):
    """Deleting would not be safe now."""


def run_request(place: StorageView, request: Request) -> Iterator[Fact]:
    match request:
        case ListRequest():
            return _listing(place, request)
        case VerifyRequest():
            return _verification(place, request)
        case PruneRequest():
            return _pruning(place, request)


def select_checkpoint(store: Store, which: Which) -> CheckpointName:
    """The newest valid checkpoint, or that of an epoch; one of a worker that was cut off if there is no other."""
    there = [found for found in stored_checkpoints(store, EVERY_ATTEMPT) if which.epoch in (None, found.name.epoch)]
    if which.best_by is not None:
        return _best(store, there, which.best_by)
    if (name := _newest(there)) is not None:
        return name
    raise CheckpointNotFound(_not_found(store, which.epoch))


def _best(store: Store, there: list[StoredCheckpoint], by: Metric) -> CheckpointName:
    if (found := best(there, by)) is not None:
        return found.name
    if _newest(there) is None:
        raise CheckpointNotFound(_not_found(store, None))
    raise CheckpointNotFound(
        f"no valid checkpoint in {store.address} has the metric {by}, so that none is the best: report it at the end "
        "of each epoch, before the save, or choose a checkpoint with --epoch"
    )


def _newest(newest_first: list[StoredCheckpoint]) -> CheckpointName | None:
    valid = [found for found in newest_first if found.valid]
    return next((found.name for found in (*(found for found in valid if found.is_resumable), *valid)), None)


def _listing(place: StorageView, request: ListRequest) -> Iterator[CheckpointInfo]:
    """Newest first, then what was set aside."""
    fence = Fence(place.store)
    found, names = [], []
    for name in place.store.names(EVERY_ATTEMPT):
        is_over = name.attempt < request.attempt or not request.running
        saved, manifest = _look(place, name, is_over=is_over)
        names.append(name)
        found.append(_fenced(fence, name, manifest.about.job if manifest else request.job, saved))
    # An attempt looks at no later one's; there are some where another job has used the prefix.
    resumed = _resumed([saved for saved in found if saved.attempt <= request.attempt + 1])
    there = [
        StoredCheckpoint(name, saved.state == "valid", metrics=saved.metrics)
        for name, saved in zip(names, found, strict=True)
    ]
    top = best((one for one in there if one.name.attempt <= request.attempt), request.by)
    for one, saved in zip(there, found, strict=True):
        yield replace(saved, resumes=saved is resumed, best=one is top)
    for leaf, content in place.quarantined():
        if (aside := _quarantined(leaf, content)) is not None:
            yield aside


def _verification(place: StorageView, request: VerifyRequest) -> Iterator[VerifyResult]:
    """One after the other, newest first, so that something is seen soon."""
    names = [name for name in place.store.names(EVERY_ATTEMPT) if request.epoch in (None, name.epoch)]
    if not names and request.epoch is not None:
        raise CheckpointNotFound(_not_found(place.store, request.epoch))
    for name in names:
        saved, manifest = _look(place, name, is_over=False)
        damage = _damage(place, name, manifest) if manifest else ()
        yield VerifyResult(saved=saved, damage=(saved.reason,) if saved.state == "damaged" else damage)


def _pruning(place: StorageView, request: PruneRequest) -> Iterator[PruneResult]:
    """Oldest first."""
    there = stored_checkpoints(place.store, request.attempt)
    names = expired(
        there, request.keep, request.attempt, _in_use(place.store, request.attempt, request.job), request.by
    )
    found = [_look(place, name, is_over=False)[0] for name in names]
    if not request.delete:
        yield from (PruneResult(saved=saved, deleted=False) for saved in found)
        return
    newest = _newest(there) if names else None
    if newest is not None:
        _must_be_whole(place, newest)
    for name, saved in zip(names, found, strict=True):
        place.store.delete(name)
        yield PruneResult(saved=saved, deleted=True)


def _must_be_whole(place: StorageView, newest: CheckpointName) -> None:
    """What has a manifest may be damaged all the same, and then a resume needs an older one."""
    if damage := _damage(place, newest, stored(place.store, newest)):
        raise UnsafePrune(
            f"nothing was deleted: the newest checkpoint, {newest}, is damaged ({damage[0]}), and a resume needs an "
            "older one; `holdfast checkpoints verify` tells which are whole"
        )


def _resumed(newest_first: list[CheckpointInfo]) -> CheckpointInfo | None:
    """What the next attempt would go on from."""
    for states in (("valid", "undigested"), ("superseded",)):
        for saved in newest_first:
            if saved.state in states:
                return saved
    return None


def _fenced(fence: Fence, name: CheckpointName, job: str, saved: CheckpointInfo) -> CheckpointInfo:
    ended_by = fence.superseded_by(name, job) if saved.state in ("valid", "undigested") else None
    if ended_by is None:
        return saved
    return replace(saved, state="superseded", reason=f"attempt {ended_by} had begun further back when it was saved")


def _in_use(store: Store, attempt: int, job: str) -> set[CheckpointName]:
    """What the workers of the attempt may still be reading."""
    try:
        name = read_decision(store, attempt, job)
    except (DecisionPending, UnsafeContent):
        return set()
    return {name} if name else set()


def _look(place: StorageView, name: CheckpointName, *, is_over: bool) -> tuple[CheckpointInfo, Manifest | None]:
    """is_over: whether nobody writes it any more, so that what is whole without a manifest counts."""
    try:
        manifest = place.store.manifest(name)
    except UnsafeContent as error:
        return _saved(name, "damaged", str(error)), None
    if manifest is not None:
        return _described(_saved(name, "valid"), manifest), manifest
    if is_over and place.is_complete(name):
        return _saved(name, "undigested", "complete, and not digested yet: the next attempt does that first"), None
    return _saved(name, "unfinished", "it has no manifest: it is being saved, or its saving was interrupted"), None


def _quarantined(leaf: str, content: bytes | None) -> CheckpointInfo | None:
    match = ASIDE.fullmatch(leaf)
    name = parse(match[1], match[2]) if match else None
    if name is None:
        return None
    found = replace(_saved(name, "quarantined", "its content was not what was saved"), path=f"{QUARANTINE}/{leaf}")
    try:
        return _described(found, manifests.decode(content, str(name))) if content else found
    except UnsafeContent:
        return found


def _saved(name: CheckpointName, state: State, reason: str = "") -> CheckpointInfo:
    return CheckpointInfo(epoch=name.epoch, attempt=name.attempt, path=name.folder, state=state, reason=reason)


def _described(saved: CheckpointInfo, manifest: Manifest) -> CheckpointInfo:
    return replace(
        saved,
        step=manifest.step,
        bytes=manifest.size,
        files=len(manifest.files),
        workers=manifest.about.world,
        saved_at=manifest.about.saved_at,
        metrics=dict(manifest.metrics),
    )


def _damage(place: StorageView, name: CheckpointName, manifest: Manifest) -> tuple[str, ...]:
    """A sentence for each file that is not what was saved."""
    found = map_in_threads(lambda file: _damage_of(place, name, file), manifest.files, WORKERS)
    return tuple(sentence for sentence in found if sentence)


def _damage_of(place: StorageView, name: CheckpointName, file: File) -> str:
    try:
        verify_stream(file, lambda file: place.chunks(name, file))
    except Corrupt as error:
        return str(error)
    return ""


def _not_found(store: Store, epoch: int | None) -> str:
    what = "no valid checkpoint" if epoch is None else f"no valid checkpoint of epoch {epoch}"
    return f"there is {what} in {store.address}: `holdfast checkpoints list` shows what there is"
