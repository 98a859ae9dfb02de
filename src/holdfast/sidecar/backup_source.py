"""Which checkpoint a backup takes: the one that the training saves when asked, or else the newest complete one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import structlog

from holdfast.checkpoints import confined_files, files
from holdfast.checkpoints.errors import CheckpointError, CheckpointNotFound, UnsafeContent
from holdfast.checkpoints.manifest import CheckpointManifest, CheckpointName
from holdfast.checkpoints.store import CheckpointStore
from holdfast.checkpoints.volume_store import VolumeStore
from holdfast.sidecar import persister as notices
from holdfast.sidecar.persister import CheckpointPersister
from holdfast.sidecar.settings import Checkpoints, SidecarSettings
from holdfast.sidecar.storage import CheckpointBackend

LOOK_EVERY_S = 1.0
# Of the time that is left, the part that a training may take to save: the rest is for the way to the registry.
SAVE_SHARE = 0.5
SCRATCH = ".holdfast-backup-"

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class ChosenCheckpoint(NamedTuple):
    """`note` says why it is not one that was saved for the backup; "" if it is."""

    name: CheckpointName
    address: str
    note: str


class PackedCheckpoint(NamedTuple):
    folder: Path
    manifest: CheckpointManifest


class BackupSource:
    """The checkpoints of one worker. `is_ending`: the training has ended and will save no more."""

    def __init__(
        self,
        settings: SidecarSettings,
        checkpoints: Checkpoints,
        persister: CheckpointPersister,
        backend: CheckpointBackend,
        open_store: Callable[[], CheckpointStore],
        is_ending: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._checkpoints = checkpoints
        self._persister = persister
        self._backend = backend
        self._open_store = open_store
        self._is_ending = is_ending
        self.scratch = checkpoints.folder.parent / f"{SCRATCH}{settings.index}"
        """For what must be in a file of its own; it is empty between runs."""

    @property
    def is_partial(self) -> bool:
        """Whether this worker can't see whole checkpoints: with an object store each worker has its own folder."""
        return bool(self._checkpoints.store) and self._settings.index > 0

    @property
    def saves_on_request(self) -> bool:
        file = self._settings.notice_file
        return file is not None and notices.trainer_saves_on_notice(file)

    async def choose(self, reason: str, left_s: float) -> ChosenCheckpoint:
        """Ask the training to save, and wait until that checkpoint is stored; the newest one if it does not save."""
        timeout_s = left_s * SAVE_SHARE
        name, note = None, "the training does not save on request (it never looks for HOLDFAST_NOTICE_FILE)"
        file = self._settings.notice_file
        if file is not None and self.saves_on_request:
            name = await self._persister.request_save(
                lambda: notices.write_notice(file, reason), timeout_s, self._is_ending
            )
            note = f"the training was asked to save, and has not within {timeout_s:.0f} s"
            if self._is_ending():
                note = "the training has ended"
        stored = await self._stored(name)
        note = "" if name is not None else f"{note}: the newest checkpoint is taken"
        return ChosenCheckpoint(stored, self._backend.address(stored), note)

    async def _stored(self, at_least: CheckpointName | None) -> CheckpointName:
        """The newest checkpoint that has its manifest, and is not older than `at_least`."""
        while True:
            for scan in sorted(await self._persister.scan(), key=lambda scan: scan.name, reverse=True):
                if at_least is not None and scan.name < at_least:
                    break
                if scan.complete and await asyncio.to_thread(self._backend.is_persisted, scan):
                    return scan.name
            if at_least is None and (found := await asyncio.to_thread(self._newest_in_store)) is not None:
                return found
            await asyncio.sleep(LOOK_EVERY_S)

    def _newest_in_store(self) -> CheckpointName | None:
        """Of an earlier attempt: this one may not have saved yet."""
        store = self._open_store()
        for name in store.names(self._settings.attempt):
            with contextlib.suppress(UnsafeContent):
                if store.manifest(name) is not None:
                    return name
        return None

    @contextlib.asynccontextmanager
    async def opened(self, name: CheckpointName) -> AsyncIterator[PackedCheckpoint]:
        """The checkpoint's files, which retention leaves alone inside the block, with its manifest."""
        with self._persister.pinned(name):
            await asyncio.to_thread(self.clear)
            try:
                yield await asyncio.to_thread(self._files, name)
            finally:
                await asyncio.to_thread(self.clear)

    def clear(self) -> None:
        """Remove what a run, or a run of a sidecar that was killed, has left."""
        with files.translate_os_errors(f"remove {self.scratch}"):
            files.remove_any(self.scratch)

    def _files(self, name: CheckpointName) -> PackedCheckpoint:
        store, root = self._open_store(), self._checkpoints.folder.parent
        local = VolumeStore(root)
        manifest = _own_manifest(local, name)
        if manifest is None and (manifest := store.manifest(name)) is None:
            raise CheckpointNotFound(f"{name} was removed meanwhile")
        # Where objects are stored elsewhere than their paths, the manifest says so; in a layer they are at their paths.
        manifest = replace(manifest, files=tuple(replace(file, stored_at="") for file in manifest.files))
        folder = local.folder(name)
        if not _has_files(folder, manifest):
            with files.translate_os_errors(f"make the folder {self.scratch}"):
                files.make_folder(self.scratch)
            folder = self.scratch / name.folder_name
            store.get(name, folder)
        return PackedCheckpoint(folder, manifest)


def _own_manifest(local: VolumeStore, name: CheckpointName) -> CheckpointManifest | None:
    """The manifest in the folder itself: of a volume, or of a copy that this attempt began with."""
    try:
        return local.manifest(name)
    except CheckpointError as error:
        log.info("the checkpoint's folder has no manifest that can be read", reason=str(error))
        return None


def _has_files(folder: Path, manifest: CheckpointManifest) -> bool:
    """Whether the folder holds all files: with an object store, other workers' shards are in other pods."""
    for file in manifest.files:
        try:
            with confined_files.regular(folder, file.path) as path:
                if path.stat().st_size != file.size:
                    return False
        except (OSError, confined_files.LeavesFolder):
            return False
    return True
