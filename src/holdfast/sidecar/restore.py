"""Restores the checkpoint that the attempt resumes from, with retries, and reports damaged checkpoints."""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct, structs

from holdfast.api.reports import CheckpointReport, Outcome, ProgressReport
from holdfast.checkpoints import files
from holdfast.checkpoints.completeness import list_checkpoints, read_markers
from holdfast.checkpoints.errors import CheckpointError, Incomplete, StoreError, StoreUnreachable
from holdfast.checkpoints.images.errors import RegistryUnreachable
from holdfast.checkpoints.manifest import CheckpointName, SaveInfo
from holdfast.checkpoints.object_store import ObjectStore
from holdfast.checkpoints.resume import DecisionPending, read_decision, write_decision
from holdfast.checkpoints.store import CheckpointStore, StoreInUse, StoreLease
from holdfast.checkpoints.volume_store import VolumeStore
from holdfast.sidecar.progress import InvalidProgress
from holdfast.sidecar.resume_source import choose_start, fetch_resume_source
from holdfast.sidecar.settings import Checkpoints, SidecarSettings
from holdfast.train.checkpoint import JOINING, recover, resume_position

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


# Worker 0's decision which checkpoint all workers resume from, and how long the decision is valid.
#
# A suspended job continues with new pods in the same attempt, from the checkpoints saved meanwhile. So a decision ends
# with the pod that made it, if that pod is terminated: a worker that starts before the next worker 0 has decided waits,
# and does not resume from an older checkpoint.

WITHDRAWN = "withdrawn"


def valid_decision(store: CheckpointStore, attempt: int, job: str) -> CheckpointName | None:
    if _decision_fields(store, attempt).get(WITHDRAWN):
        raise DecisionPending(f"worker 0 has not written to {store.address} yet what attempt {attempt} goes on from")
    return read_decision(store, attempt, job)


def withdraw_decision(store: CheckpointStore, attempt: int) -> bool:
    """Whether the decision was withdrawn before, which means that the attempt's earlier pods have ended.

    The other fields of the decision stay: where the attempt began matters for what earlier attempts still save.
    """
    facts = _decision_fields(store, attempt)
    if facts and not facts.get(WITHDRAWN):
        store.write_decision(attempt, json.dumps({**facts, WITHDRAWN: True}).encode())
    return bool(facts.get(WITHDRAWN))


def _decision_fields(store: CheckpointStore, attempt: int) -> dict[str, object]:
    with contextlib.suppress(ValueError, RecursionError):
        facts = json.loads(store.read_decision(attempt) or b"{}")
        return facts if isinstance(facts, dict) else {}
    return {}


# Restores the checkpoint before the training starts. Worker 0 decides for all workers.


class QuarantinedCheckpoint(Struct, frozen=True):
    """A damaged checkpoint. No attempt resumes from it any more."""

    name: CheckpointName
    reason: str


class Restored(Struct, frozen=True):
    """`name` is the checkpoint that was restored; None: there is none to resume from."""

    name: CheckpointName | None
    address: str
    quarantined: tuple[QuarantinedCheckpoint, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    """Images that were to be resumed from and are damaged: their addresses, and why."""


def is_retryable(error: CheckpointError) -> bool:
    """Whether to retry: network errors and waits for other workers may pass, wrong credentials do not."""
    temporary = (StoreUnreachable, RegistryUnreachable, DecisionPending, Incomplete, StoreInUse)
    return isinstance(error, temporary) or type(error) is StoreError


def restore(
    checkpoints: Checkpoints,
    store: CheckpointStore,
    *,
    attempt: int,
    index: int,
    about: SaveInfo,
    environ: Mapping[str, str],
    note: Callable[[str], None],
) -> Restored:
    """When this returns, RESUME_FROM links to the checkpoint, or does not exist when there is none."""
    with files.translate_os_errors(f"make the folder {checkpoints.folder}"):
        files.make_folder(checkpoints.folder)
    if index == 0:
        return _restore_as_worker0(checkpoints, store, attempt, about, environ, note)
    name = valid_decision(store, attempt, about.job)
    if isinstance(store, VolumeStore):
        # All workers share the volume, so worker 0 has restored the checkpoint for them, too.
        return Restored(name, _address(name, store.address, checkpoints))
    return _restore_as_other(checkpoints, store, attempt, name, about, environ)


def _restore_as_worker0(
    checkpoints: Checkpoints,
    store: CheckpointStore,
    attempt: int,
    about: SaveInfo,
    environ: Mapping[str, str],
    note: Callable[[str], None],
) -> Restored:
    messages: list[str] = []

    def collect(message: str) -> None:
        messages.append(message)
        note(message)

    earlier_pods_ended = withdraw_decision(store, attempt)
    if isinstance(store, VolumeStore):
        store.remove_interrupted(attempt)
        if earlier_pods_ended:
            _remove_unfinished(checkpoints.folder, store)
        for folder in store.attempt_folders(attempt):
            recover(folder)
    elif isinstance(store, ObjectStore):
        store.forget_parts(attempt)
    before = set(store.names(attempt))
    name, source, refused = choose_start(checkpoints, store, attempt, about, environ, collect)
    quarantined = tuple(
        QuarantinedCheckpoint(removed, _reason_for(removed, messages))
        for removed in sorted(before - set(store.names(attempt)))
    )
    address = store.address
    if source is not None:
        address, checkpoints = "", structs.replace(checkpoints, resume_from=source.address)
    # A worker that reads the decision starts its training at once, so the link comes first.
    _link(checkpoints, name)
    write_decision(store, attempt, name, about.job)
    return Restored(name, _address(name, address, checkpoints), quarantined, refused)


def _remove_unfinished(folder: Path, store: VolumeStore) -> None:
    """Remove shards of interrupted saves: shards of the next save under the same name must not join them."""
    with files.translate_os_errors(f"tidy {folder}"):
        files.remove_any(folder / JOINING)
        for name in list_checkpoints(folder):
            declared = read_markers(folder / name.folder_name)
            if declared is not None and not declared.all_shards_present:
                store.delete(name)


def _restore_as_other(
    checkpoints: Checkpoints,
    store: CheckpointStore,
    attempt: int,
    name: CheckpointName | None,
    about: SaveInfo,
    environ: Mapping[str, str],
) -> Restored:
    """With an object store the other workers have folders of their own, and need the same checkpoint as worker 0."""
    address = store.address
    if name is not None and checkpoints.resume_from and store.manifest(name) is None:
        source = fetch_resume_source(checkpoints, attempt, about, environ)
        if source.name != name:
            raise Incomplete(f"worker 0 goes on from {name}, and {source.address} is {source.name}: it is tried again")
        address, checkpoints = "", structs.replace(checkpoints, resume_from=source.address)
    elif name is not None:
        store.get(name, checkpoints.folder / name.folder_name)
    _link(checkpoints, name)
    return Restored(name, _address(name, address, checkpoints))


def _address(name: CheckpointName | None, store: str, checkpoints: Checkpoints) -> str:
    if name is None:
        return ""
    return f"{store}/{name.folder}" if store else checkpoints.resume_from


def _reason_for(name: CheckpointName, messages: list[str]) -> str:
    return next((message for message in messages if message.startswith(f"{name} ")), f"{name} is damaged")


def _link(checkpoints: Checkpoints, name: CheckpointName | None) -> None:
    link = checkpoints.resume_link
    with files.translate_os_errors(f"set RESUME_FROM {link}"):
        if name is None:
            link.unlink(missing_ok=True)
            return
        partial = link.with_name(f".{link.name}.partial")
        partial.unlink(missing_ok=True)
        partial.symlink_to(os.path.relpath(checkpoints.folder / name.folder_name, link.parent))
        files.rename(partial, link)


# The state that a sidecar needs after a restart in the same pod. Without a folder for the state, nothing is stored.

RESTORED = "restored.json"
PROGRESS_JOURNAL = "told.jsonl"


class ResumeInfo(Struct, frozen=True):
    """The checkpoint that the attempt resumed from. A restarted sidecar does not restore: the training may run."""

    path: str = ""
    epoch: int = 0
    attempt: int = 0
    leaf: str = ""
    done: int = 0
    """The completed epochs at the save: less than `epoch` if the checkpoint was saved within an epoch."""


class RestartState:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def began(self) -> ResumeInfo | None:
        if self._folder is None:
            return None
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return msgspec.json.decode((self._folder / RESTORED).read_bytes(), type=ResumeInfo)
        return None

    def begin(self, resume_info: ResumeInfo) -> None:
        with _best_effort():
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                partial = self._folder / f".{RESTORED}"
                partial.write_bytes(msgspec.json.encode(resume_info))
                partial.replace(self._folder / RESTORED)

    @property
    def progress_journal(self) -> Path | None:
        """The file with progress that came by other ways than PROGRESS_FILE. It is read like PROGRESS_FILE."""
        return self._folder / PROGRESS_JOURNAL if self._folder is not None else None

    def journal_progress(self, entry: ProgressReport) -> bool:
        """Write the end of an epoch that PROGRESS_FILE does not hold; whether the journal holds it now."""
        with _best_effort():
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                with (self._folder / PROGRESS_JOURNAL).open("ab") as file:
                    file.write(msgspec.json.encode(entry) + b"\n")
                return True
        return False


def parse_journal_line(line: bytes) -> ProgressReport:
    try:
        return msgspec.json.decode(line, type=ProgressReport)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise InvalidProgress("it was not written to its end") from None


@contextlib.contextmanager
def _best_effort() -> Iterator[None]:
    """Log errors only: a full disk is no reason to stop anything."""
    try:
        yield
    except OSError as error:
        log.warning("can't write down what a restart of this sidecar would need", reason=str(error))


RETRY_S, RETRY_CAP_S = 1.0, 30.0
UNDECIDED_S = 0.5
POLLS_PER_LINE = 60
MOST_REASON = 1000


class RestoreLoop:
    """`open_store` may fail like a restore; `on_checkpoint` gets problems with checkpoints; `wall` is the wall clock.

    lease: worker 0 must hold this lease before it writes to the store.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        checkpoints: Checkpoints,
        open_store: Callable[[], CheckpointStore],
        *,
        environ: Mapping[str, str],
        about: Callable[[], SaveInfo],
        on_checkpoint: Callable[[CheckpointReport], None],
        wall: Callable[[], float],
        lease: StoreLease | None,
    ) -> None:
        self._settings = settings
        self._checkpoints = checkpoints
        self._open_store = open_store
        self._environ = environ
        self._about = about
        self._on_checkpoint = on_checkpoint
        self._wall = wall
        self._lease = lease

    async def run(self) -> ResumeInfo:
        """Raises the errors that no retry fixes."""
        attempts = 0
        while True:
            try:
                store = await asyncio.to_thread(self._open_store)
                return self._resume_info(await asyncio.to_thread(self._restore, store), store.address)
            except (CheckpointError, OSError) as error:
                if isinstance(error, CheckpointError) and not is_retryable(error):
                    raise
                attempts += 1
                await asyncio.sleep(self._pause_s(error, attempts))

    def _restore(self, store: CheckpointStore) -> Restored:
        if self._lease is not None:
            self._lease.acquire(store)
        return restore(
            self._checkpoints,
            store,
            attempt=self._settings.attempt,
            index=self._settings.index,
            about=self._about(),
            environ=self._environ,
            note=lambda message: log.warning("a checkpoint is not resumed from", reason=message),
        )

    def _pause_s(self, error: Exception, attempts: int) -> float:
        if isinstance(error, DecisionPending):
            if attempts % POLLS_PER_LINE == 0:
                log.info("waiting for worker 0", reason=str(error))
            return UNDECIDED_S
        log.warning(
            "can't have the checkpoint to resume from yet; it is tried again", reason=str(error), tries=attempts
        )
        if attempts == 1:
            is_image = isinstance(error, RegistryUnreachable)
            own = self._checkpoints.store or str(self._checkpoints.folder)
            self._report(self._checkpoints.resume_from if is_image else own, 0, "unrestored", str(error))
        return min(RETRY_CAP_S, RETRY_S * 2.0 ** min(attempts - 1, 30))

    def _resume_info(self, restored: Restored, address: str) -> ResumeInfo:
        for quarantined in restored.quarantined:
            self._report(
                f"{address}/{quarantined.name.folder}", quarantined.name.epoch, "quarantined", quarantined.reason
            )
        for refused, reason in restored.refused:
            log.warning("an image is not resumed from", image=refused, reason=reason)
            self._report(refused, 0, "quarantined", reason)
        name = restored.name
        if name is None:
            log.info("nothing to resume from")
            return ResumeInfo()
        log.info("resuming", checkpoint=str(name), address=restored.address)
        done, _ = resume_position(self._checkpoints.folder / name.folder_name)
        return ResumeInfo(restored.address, name.epoch, name.attempt, name.folder_name, done)

    def _report(self, path: str, epoch: int, outcome: Outcome, reason: str) -> None:
        entry = CheckpointReport(path=path, epoch=epoch, outcome=outcome, reason=reason[:MOST_REASON], at=self._wall())
        self._on_checkpoint(entry)
