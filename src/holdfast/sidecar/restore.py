"""Tries until what the attempt resumes from is in its place, and tells what was found on the way."""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from holdfast.api.reports import Checkpoint, Outcome, Progress
from holdfast.checkpoints import files
from holdfast.checkpoints.completeness import list_checkpoints, read_markers
from holdfast.checkpoints.errors import CheckpointError, Incomplete, StoreError, Unreachable
from holdfast.checkpoints.fetch import fetch, find
from holdfast.checkpoints.lease import InUse, Lease
from holdfast.checkpoints.manifest import CheckpointName, SaveInfo, checkpoint_name
from holdfast.checkpoints.object_store import ObjectStore
from holdfast.checkpoints.resume import DecisionPending, read_decision, resume, write_decision
from holdfast.checkpoints.store import Store
from holdfast.checkpoints.volume_store import VolumeStore
from holdfast.sidecar.progress import InvalidProgress
from holdfast.sidecar.settings import Checkpoints, Settings
from holdfast.train.checkpoint import JOINING, recover, resume_position

# What worker 0 has decided that all workers begin with, and for how long that counts.
#
# A job that is suspended goes on with new pods in the same attempt, from what was saved meanwhile. So a decision ends
# with the pod that made it, if that was told to go: who starts before the next worker 0 has decided waits, and does not
# begin further back.

WITHDRAWN = "withdrawn"


def standing_decision(store: Store, attempt: int, job: str) -> CheckpointName | None:
    if _facts(store, attempt).get(WITHDRAWN):
        raise DecisionPending(f"worker 0 has not written to {store.address} yet what attempt {attempt} goes on from")
    return read_decision(store, attempt, job)


def withdraw_decision(store: Store, attempt: int) -> bool:
    """Whether it was withdrawn before, so that the attempt's earlier pods have ended.

    The rest of the note stays: where the attempt began counts for what earlier ones still save.
    """
    facts = _facts(store, attempt)
    if facts and not facts.get(WITHDRAWN):
        store.write_decision(attempt, json.dumps({**facts, WITHDRAWN: True}).encode())
    return bool(facts.get(WITHDRAWN))


def _facts(store: Store, attempt: int) -> dict[str, object]:
    with contextlib.suppress(ValueError, RecursionError):
        facts = json.loads(store.read_decision(attempt) or b"{}")
        return facts if isinstance(facts, dict) else {}
    return {}


# Puts what an attempt resumes from in its place, before the training starts. Worker 0 decides for all workers.


class QuarantinedCheckpoint(Struct, frozen=True):
    """A damaged checkpoint that nobody resumes from any more."""

    name: CheckpointName
    reason: str


class Restored(Struct, frozen=True):
    """`name` is where it came from; None: there is nothing to resume from."""

    name: CheckpointName | None
    address: str
    aside: tuple[QuarantinedCheckpoint, ...] = ()


def is_retryable(error: CheckpointError) -> bool:
    """Whether to try again: the network and other workers change by themselves, credentials do not."""
    return isinstance(error, Unreachable | DecisionPending | Incomplete | InUse) or type(error) is StoreError


def restore(
    place: Checkpoints,
    store: Store,
    *,
    attempt: int,
    index: int,
    about: SaveInfo,
    environ: Mapping[str, str],
    note: Callable[[str], None],
) -> Restored:
    """RESUME_FROM leads to the checkpoint when this returns, and does not exist when there is none."""
    with files.translate_os_errors(f"make the folder {place.folder}"):
        files.make_folder(place.folder)
    if index == 0:
        return _decided(place, store, attempt, about, environ, note)
    name = standing_decision(store, attempt, about.job)
    if isinstance(store, VolumeStore):
        # Worker 0's volume is theirs, too, with what it has put there.
        return Restored(name, _address(name, store.address, place))
    return _fetched(place, store, attempt, name, about, environ)


def _decided(
    place: Checkpoints,
    store: Store,
    attempt: int,
    about: SaveInfo,
    environ: Mapping[str, str],
    note: Callable[[str], None],
) -> Restored:
    said: list[str] = []

    def heard(sentence: str) -> None:
        said.append(sentence)
        note(sentence)

    is_anew = withdraw_decision(store, attempt)
    if isinstance(store, VolumeStore):
        store.remove_leftovers(attempt)
        if is_anew:
            _remove_unfinished(place.folder, store)
        for folder in store.attempt_folders(attempt):
            recover(folder)
    elif isinstance(store, ObjectStore):
        store.forget_parts(attempt)
    before = set(store.names(attempt))
    name, address = resume(store, place.folder, attempt, about, heard), store.address
    aside = tuple(
        QuarantinedCheckpoint(gone, _about(gone, said)) for gone in sorted(before - set(store.names(attempt)))
    )
    if name is None and place.resume_from:
        name, address = _fetch_resume_from(place, attempt, about, environ), ""
    # Whoever reads the decision starts a training at once.
    _link(place, name)
    write_decision(store, attempt, name, about.job)
    return Restored(name, _address(name, address, place), aside)


def _remove_unfinished(folder: Path, store: VolumeStore) -> None:
    """Shards of a save that nobody ends any more: those of the next save under that name must not join them."""
    with files.translate_os_errors(f"tidy {folder}"):
        files.remove_any(folder / JOINING)
        for name in list_checkpoints(folder):
            declared = read_markers(folder / name.folder_name)
            if declared is not None and not declared.all_shards_present:
                store.delete(name)


def _fetched(
    place: Checkpoints,
    store: Store,
    attempt: int,
    name: CheckpointName | None,
    about: SaveInfo,
    environ: Mapping[str, str],
) -> Restored:
    """The other workers have folders of their own, and need what worker 0 has."""
    address = store.address
    if name is not None and place.resume_from and store.manifest(name) is None:
        name, address = _fetch_resume_from(place, attempt, about, environ), ""
    elif name is not None:
        store.get(name, place.folder / name.folder_name)
    _link(place, name)
    return Restored(name, _address(name, address, place))


def _fetch_resume_from(place: Checkpoints, attempt: int, about: SaveInfo, environ: Mapping[str, str]) -> CheckpointName:
    source = find(place.resume_from, environ)
    name = checkpoint_name(source.epoch, attempt)
    fetch(source, place.folder / name.folder_name, name, about)
    return name


def _address(name: CheckpointName | None, store: str, place: Checkpoints) -> str:
    if name is None:
        return ""
    return f"{store}/{name.folder}" if store else place.resume_from


def _about(name: CheckpointName, said: list[str]) -> str:
    return next((sentence for sentence in said if sentence.startswith(f"{name} ")), f"{name} is damaged")


def _link(place: Checkpoints, name: CheckpointName | None) -> None:
    link = place.resume_link
    with files.translate_os_errors(f"set RESUME_FROM {link}"):
        if name is None:
            link.unlink(missing_ok=True)
            return
        partial = link.with_name(f".{link.name}.partial")
        partial.unlink(missing_ok=True)
        partial.symlink_to(os.path.relpath(place.folder / name.folder_name, link.parent))
        files.rename(partial, link)


# What a sidecar that starts anew in the same pod goes on from. Without a folder for it, nothing is remembered.

RESTORED = "restored.json"
TOLD = "told.jsonl"

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class ResumeInfo(Struct, frozen=True):
    """What the attempt resumed from; the training may have started since, so that it is not looked for again."""

    path: str = ""
    epoch: int = 0
    attempt: int = 0
    leaf: str = ""
    done: int = 0
    """The epochs that were done when it was saved: less than its number if that was within an epoch."""


class RestartState:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def began(self) -> ResumeInfo | None:
        if self._folder is None:
            return None
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return msgspec.json.decode((self._folder / RESTORED).read_bytes(), type=ResumeInfo)
        return None

    def begin(self, began: ResumeInfo) -> None:
        with _trying():
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                partial = self._folder / f".{RESTORED}"
                partial.write_bytes(msgspec.json.encode(began))
                partial.replace(self._folder / RESTORED)

    @property
    def progress_journal(self) -> Path | None:
        """The file of what was noted, which is read as the training's own is."""
        return self._folder / TOLD if self._folder is not None else None

    def journal_progress(self, entry: Progress) -> bool:
        """Whether the end of an epoch that is in no file of the training's is in this one."""
        with _trying():
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                with (self._folder / TOLD).open("ab") as file:
                    file.write(msgspec.json.encode(entry) + b"\n")
                return True
        return False


def read_noted(line: bytes) -> Progress:
    try:
        return msgspec.json.decode(line, type=Progress)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise InvalidProgress("it was not written to its end") from None


@contextlib.contextmanager
def _trying() -> Iterator[None]:
    """It is a convenience: a full disk is no reason to stop anything."""
    try:
        yield
    except OSError as error:
        log.warning("can't write down what a restart of this sidecar would need", reason=str(error))


RETRY_S, RETRY_CAP_S = 1.0, 30.0
UNDECIDED_S = 0.5
POLLS_PER_LINE = 60
MOST_REASON = 1000


class RestoreLoop:
    """`open_store` may fail as a restore does; `tell` hears of trouble, and `wall` is the clock of the world.

    lease: what worker 0 needs before it writes to the store.
    """

    def __init__(
        self,
        settings: Settings,
        place: Checkpoints,
        open_store: Callable[[], Store],
        *,
        environ: Mapping[str, str],
        about: Callable[[], SaveInfo],
        tell: Callable[[Checkpoint], None],
        wall: Callable[[], float],
        lease: Lease | None,
    ) -> None:
        self._settings = settings
        self._place = place
        self._open_store = open_store
        self._environ = environ
        self._about = about
        self._tell = tell
        self._wall = wall
        self._lease = lease

    async def run(self) -> ResumeInfo:
        """Raises what no retry mends."""
        tries = 0
        while True:
            try:
                store = await asyncio.to_thread(self._open_store)
                return self._began(await asyncio.to_thread(self._restore, store), store.address)
            except (CheckpointError, OSError) as error:
                if isinstance(error, CheckpointError) and not is_retryable(error):
                    raise
                tries += 1
                await asyncio.sleep(self._pause_s(error, tries))

    def _restore(self, store: Store) -> Restored:
        if self._lease is not None:
            self._lease.acquire(store)
        return restore(
            self._place,
            store,
            attempt=self._settings.attempt,
            index=self._settings.index,
            about=self._about(),
            environ=self._environ,
            note=lambda sentence: log.warning("a checkpoint is not resumed from", reason=sentence),
        )

    def _pause_s(self, error: Exception, tries: int) -> float:
        if isinstance(error, DecisionPending):
            if tries % POLLS_PER_LINE == 0:
                log.info("waiting for worker 0", reason=str(error))
            return UNDECIDED_S
        log.warning("can't have the checkpoint to resume from yet; it is tried again", reason=str(error), tries=tries)
        if tries == 1:
            self._report(self._place.store or str(self._place.folder), 0, "unrestored", str(error))
        return min(RETRY_CAP_S, RETRY_S * 2.0 ** min(tries - 1, 30))

    def _began(self, restored: Restored, address: str) -> ResumeInfo:
        for aside in restored.aside:
            self._report(f"{address}/{aside.name.folder}", aside.name.epoch, "quarantined", aside.reason)
        name = restored.name
        if name is None:
            log.info("nothing to resume from")
            return ResumeInfo()
        log.info("resuming", checkpoint=str(name), address=restored.address)
        done, _ = resume_position(self._place.folder / name.folder_name)
        return ResumeInfo(restored.address, name.epoch, name.attempt, name.folder_name, done)

    def _report(self, path: str, epoch: int, outcome: Outcome, reason: str) -> None:
        entry = Checkpoint(path=path, epoch=epoch, outcome=outcome, reason=reason[:MOST_REASON], at=self._wall())
        self._tell(entry)
