"""Lists, verifies and prunes checkpoints in a store that this process can access."""

import re
from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.checkpoints import manifest as manifests
from holdfast.checkpoints.errors import CheckpointNotFound, Corrupt, UnsafeContent
from holdfast.checkpoints.manifest import QUARANTINE, CheckpointManifest, CheckpointName, File, parse
from holdfast.checkpoints.resume import DecisionPending, Fence, read_decision
from holdfast.checkpoints.retention import Metric, StoredCheckpoint, best, expired, stored_checkpoints
from holdfast.checkpoints.store import CheckpointStore
from holdfast.checkpoints.store import require_manifest as stored
from holdfast.checkpoints.unpack import map_in_threads, verify_stream
from holdfast.cli.checkpoints.view import StorageView
from holdfast.errors import HoldfastError

# Requests about the checkpoints of a job and their results, the same for work in this process and in a pod.


# undigested: complete, but without a manifest so far. superseded: saved by a disconnected worker after a later attempt
# had resumed from an earlier checkpoint; used only if there is no other checkpoint.
State = Literal["valid", "undigested", "superseded", "unfinished", "damaged", "quarantined"]


class ListRequest(Struct, frozen=True, kw_only=True, tag="list"):
    """job: uid of the job; attempt: its current attempt; running: whether the job may be writing now.

    by: the metric that selects the best checkpoint.
    """

    job: str
    attempt: int
    running: bool
    by: Metric = "loss"


class VerifyRequest(Struct, frozen=True, kw_only=True, tag="verify"):
    """Verify the checkpoints of one epoch, or all checkpoints."""

    epoch: int | None = None


class PruneRequest(Struct, frozen=True, kw_only=True, tag="prune"):
    """Retain the newest `keep` valid checkpoints and the best; without `delete`, only report what would be deleted."""

    job: str
    attempt: int
    keep: int
    delete: bool = False
    by: Metric = "loss"


class Which(Struct, frozen=True, kw_only=True):
    """Selects the checkpoint to download: the best by a metric, or the newest valid one, of all epochs or of one."""

    epoch: int | None = None
    best_by: Metric | None = None


Request: TypeAlias = ListRequest | VerifyRequest | PruneRequest


class CheckpointInfo(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag="saved"):
    """A checkpoint in the storage; `path` is relative to the folder of the job."""

    epoch: int
    attempt: int
    path: str
    state: State
    step: int | None = None
    """The finished batches of the epoch, for a checkpoint within an epoch."""
    bytes: int | None = None
    files: int | None = None
    workers: int | None = None
    saved_at: str | None = None
    reason: str = ""
    resumes: bool = False
    """Whether the next attempt would resume from this checkpoint."""
    metrics: dict[str, float] = {}
    best: bool = False
    """Whether it has the best metric of all valid checkpoints, so that it is retained beside the newest."""


class VerifyResult(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="verified"):
    """The result of reading all files; each sentence of `damage` is about one file."""

    saved: CheckpointInfo
    damage: tuple[str, ...] = ()


class PruneResult(Struct, frozen=True, kw_only=True, tag="doomed"):
    """A checkpoint that was deleted or would be deleted."""

    saved: CheckpointInfo
    deleted: bool


class RequestFailed(Struct, frozen=True, kw_only=True, tag="trouble"):
    """The request failed, with the reason."""

    message: str


class EndOfStream(Struct, frozen=True, kw_only=True, tag="end"):
    """The last message: a stream without it was interrupted."""


Fact: TypeAlias = CheckpointInfo | VerifyResult | PruneResult
Line: TypeAlias = Fact | RequestFailed | EndOfStream

_line_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
_request_decoder: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)


def encode(line: Line | Request) -> str:
    return msgspec.json.encode(line).decode()


def decode(text: bytes | str) -> Line:
    """Decode one line; raises a `MsgspecError` for any other text."""
    return _line_decoder.decode(text)


def decode_request(text: str) -> Request:
    return _request_decoder.decode(text)


EVERY_ATTEMPT = 10**9 - 1
WORKERS = 3
QUARANTINED_NAME = re.compile(r"(attempt-[0-9]+)-(checkpoint-epoch-[0-9]+)(?:-[0-9]+)?")


class UnsafePrune(HoldfastError):
    """Deleting checkpoints is not safe now."""


def run_request(view: StorageView, request: Request) -> Iterator[Fact]:
    match request:
        case ListRequest():
            return _listing(view, request)
        case VerifyRequest():
            return _verification(view, request)
        case PruneRequest():
            return _pruning(view, request)


def select_checkpoint(store: CheckpointStore, which: Which) -> CheckpointName:
    """The newest valid checkpoint, of an epoch if given; a superseded checkpoint only if there is no other."""
    checkpoints = [
        found for found in stored_checkpoints(store, EVERY_ATTEMPT) if which.epoch in (None, found.name.epoch)
    ]
    if which.best_by is not None:
        return _best(store, checkpoints, which.best_by)
    if (name := _newest(checkpoints)) is not None:
        return name
    raise CheckpointNotFound(_not_found(store, which.epoch))


def _best(store: CheckpointStore, checkpoints: list[StoredCheckpoint], by: Metric) -> CheckpointName:
    if (found := best(checkpoints, by)) is not None:
        return found.name
    if _newest(checkpoints) is None:
        raise CheckpointNotFound(_not_found(store, None))
    raise CheckpointNotFound(
        f"no valid checkpoint in {store.address} has the metric {by}, so that none is the best: report it at the end "
        "of each epoch, before the save, or choose a checkpoint with --epoch"
    )


def _newest(newest_first: list[StoredCheckpoint]) -> CheckpointName | None:
    valid = [found for found in newest_first if found.valid]
    return next((found.name for found in (*(found for found in valid if found.is_resumable), *valid)), None)


def _listing(view: StorageView, request: ListRequest) -> Iterator[CheckpointInfo]:
    """Checkpoints newest first, then quarantined checkpoints."""
    fence = Fence(view.store)
    found, names = [], []
    for name in view.store.names(EVERY_ATTEMPT):
        is_over = name.attempt < request.attempt or not request.running
        saved, manifest = _inspect(view, name, is_over=is_over)
        names.append(name)
        found.append(_fenced(fence, name, manifest.about.job if manifest else request.job, saved))
    # An attempt ignores checkpoints of later attempts, which exist if another job has used the prefix.
    resumed = _resumed([saved for saved in found if saved.attempt <= request.attempt + 1])
    checkpoints = [
        StoredCheckpoint(name, saved.state == "valid", metrics=saved.metrics)
        for name, saved in zip(names, found, strict=True)
    ]
    top = best((checkpoint for checkpoint in checkpoints if checkpoint.name.attempt <= request.attempt), request.by)
    for checkpoint, saved in zip(checkpoints, found, strict=True):
        yield replace(saved, resumes=saved is resumed, best=checkpoint is top)
    for leaf, content in view.quarantined():
        if (quarantined := _quarantined(leaf, content)) is not None:
            yield quarantined


def _verification(view: StorageView, request: VerifyRequest) -> Iterator[VerifyResult]:
    """One checkpoint after the other, newest first, so that results appear soon."""
    names = [name for name in view.store.names(EVERY_ATTEMPT) if request.epoch in (None, name.epoch)]
    if not names and request.epoch is not None:
        raise CheckpointNotFound(_not_found(view.store, request.epoch))
    for name in names:
        saved, manifest = _inspect(view, name, is_over=False)
        damage = _damage(view, name, manifest) if manifest else ()
        yield VerifyResult(saved=saved, damage=(saved.reason,) if saved.state == "damaged" else damage)


def _pruning(view: StorageView, request: PruneRequest) -> Iterator[PruneResult]:
    """Delete or report expired checkpoints, oldest first."""
    checkpoints = stored_checkpoints(view.store, request.attempt)
    names = expired(
        checkpoints, request.keep, request.attempt, _in_use(view.store, request.attempt, request.job), request.by
    )
    found = [_inspect(view, name, is_over=False)[0] for name in names]
    if not request.delete:
        yield from (PruneResult(saved=saved, deleted=False) for saved in found)
        return
    newest = _newest(checkpoints) if names else None
    if newest is not None:
        _require_intact(view, newest)
    for name, saved in zip(names, found, strict=True):
        view.store.delete(name)
        yield PruneResult(saved=saved, deleted=True)


def _require_intact(view: StorageView, newest: CheckpointName) -> None:
    """Raises if the newest checkpoint is damaged despite its manifest: then a resume needs an older checkpoint."""
    if damage := _damage(view, newest, stored(view.store, newest)):
        raise UnsafePrune(
            f"nothing was deleted: the newest checkpoint, {newest}, is damaged ({damage[0]}), and a resume needs an "
            "older one; `holdfast checkpoints verify` tells which are whole"
        )


def _resumed(newest_first: list[CheckpointInfo]) -> CheckpointInfo | None:
    """The checkpoint from which the next attempt would resume."""
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


def _in_use(store: CheckpointStore, attempt: int, job: str) -> set[CheckpointName]:
    """The checkpoint that workers of the attempt may still be reading."""
    try:
        name = read_decision(store, attempt, job)
    except (DecisionPending, UnsafeContent):
        return set()
    return {name} if name else set()


def _inspect(
    view: StorageView, name: CheckpointName, *, is_over: bool
) -> tuple[CheckpointInfo, CheckpointManifest | None]:
    """State and manifest of a checkpoint. is_over: no writer is left, so a complete one without manifest counts."""
    try:
        manifest = view.store.manifest(name)
    except UnsafeContent as error:
        return _saved(name, "damaged", str(error)), None
    if manifest is not None:
        return _described(_saved(name, "valid"), manifest), manifest
    if is_over and view.is_complete(name):
        return _saved(name, "undigested", "complete, and not digested yet: the next attempt does that first"), None
    return _saved(name, "unfinished", "it has no manifest: it is being saved, or its saving was interrupted"), None


def _quarantined(leaf: str, content: bytes | None) -> CheckpointInfo | None:
    match = QUARANTINED_NAME.fullmatch(leaf)
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


def _described(saved: CheckpointInfo, manifest: CheckpointManifest) -> CheckpointInfo:
    return replace(
        saved,
        step=manifest.step,
        bytes=manifest.size,
        files=len(manifest.files),
        workers=manifest.about.world,
        saved_at=manifest.about.saved_at,
        metrics=dict(manifest.metrics),
    )


def _damage(view: StorageView, name: CheckpointName, manifest: CheckpointManifest) -> tuple[str, ...]:
    """A sentence for each damaged file."""
    found = map_in_threads(lambda file: _damage_of(view, name, file), manifest.files, WORKERS)
    return tuple(sentence for sentence in found if sentence)


def _damage_of(view: StorageView, name: CheckpointName, file: File) -> str:
    try:
        verify_stream(file, lambda file: view.chunks(name, file))
    except Corrupt as error:
        return str(error)
    return ""


def _not_found(store: CheckpointStore, epoch: int | None) -> str:
    what = "no valid checkpoint" if epoch is None else f"no valid checkpoint of epoch {epoch}"
    return f"there is {what} in {store.address}: `holdfast checkpoints list` shows what there is"
