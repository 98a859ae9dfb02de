"""The kubelet's folder of checkpoint archives. Others use it, too: the agent touches only what a record names."""

import os
import stat
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import structlog

from holdfast.checkpoints import files as disk
from holdfast.checkpoints.images.archive import CheckedArchive, check_archive
from holdfast.checkpoints.images.errors import ArchiveRefused
from holdfast.checkpoints.images.image import FileBlob, file_blob
from holdfast.checkpoints.images.layer import compress_blob, is_compressible
from holdfast.node.journal import ContainerRecord, RunRecord
from holdfast.times import parse_optional_time, parse_time

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# The kubelet names the archive after it has checked the caller's token, and before the runtime begins.
NAMED_WITHIN = timedelta(seconds=10)


class _UntilGivenUp(NamedTuple):
    """A blob that raises when nobody wants it any more: a thread can't be cancelled."""

    blob: FileBlob
    given_up: threading.Event

    @property
    def size(self) -> int:
        return self.blob.size

    def read(self, offset: int) -> Iterator[bytes | memoryview]:
        for chunk in self.blob.read(offset):
            if self.given_up.is_set():
                raise ArchiveRefused(f"{self.blob.path} is given up")
            yield chunk


class ArchiveFolder:
    """All methods block on the disk: call them in a thread. `work`: for compressed layers."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.folder = folder
        self.work = work

    def locate(self, answer: str) -> Path:
        """The archive that the kubelet names; raises ArchiveRefused unless it is a regular file of the folder."""
        path = Path(answer)
        if path.parent != self.folder or path.name in ("", ".", "..") or "\0" in answer:
            raise ArchiveRefused(
                f"the kubelet names {answer[:300]!a}, which is not in {self.folder}: mount the folder checkpoints of "
                "the kubelet's root there, or name it with --checkpoints-folder"
            )
        try:
            found = path.lstat()
        except FileNotFoundError:
            raise ArchiveRefused(
                f"the kubelet names {path}, which is not there: mount the kubelet's folder checkpoints at this path"
            ) from None
        if not stat.S_ISREG(found.st_mode):
            raise ArchiveRefused(f"{path} is not a regular file: it is not pushed")
        return path

    def size(self, path: Path) -> int:
        """0 if it is not there."""
        try:
            found = path.lstat()
        except FileNotFoundError:
            return 0
        return found.st_size if stat.S_ISREG(found.st_mode) else 0

    def check(self, path: Path) -> CheckedArchive:
        return check_archive(self.locate(str(path)))

    def compress(self, path: Path, name: str, given_up: threading.Event) -> tuple[Path, str] | None:
        """The compressed layer and its diff id; None where compression is not worth the time."""
        blob = _UntilGivenUp(file_blob(path), given_up)
        if not is_compressible(blob):
            return None
        target = self.work / name
        with disk.translate_os_errors(f"compress a layer into {target}"):
            target.unlink(missing_ok=True)
            target.touch(mode=0o600)  # it is the memory of a process
        return target, compress_blob(blob, target)

    def free_bytes(self) -> int:
        return _free_bytes(self.folder)

    def work_free_bytes(self) -> int:
        return _free_bytes(self.work)

    def remove(self, record: RunRecord, container: ContainerRecord) -> None:
        """All files of one container: its archive, the compressed layer, and what unanswered calls have left."""
        if container.archive:
            _unlink(self.folder / Path(container.archive).name)
        for path in self.unanswered(record, container):
            log.info("archive of an unanswered call removed", path=str(path))
            _unlink(path)
        _unlink(self.work / record.compressed_name(container.name))

    def unanswered(self, record: RunRecord, container: ContainerRecord) -> list[Path]:
        """The archives that the kubelet may have made for calls whose answers never came.

        checkpoint-POD_NAMESPACE-CONTAINER-TIME.tar, where the time is that of the call.
        """
        calls = [parse_time(call) for call in container.calls]
        prefix = f"checkpoint-{record.pod}_{record.namespace}-{container.name}-"
        found = []
        for path in self.folder.glob("checkpoint-*.tar") if calls else ():
            named = parse_optional_time(path.name.removeprefix(prefix).removesuffix(".tar"))
            if path.name.startswith(prefix) and named is not None and any(_is_of_call(named, call) for call in calls):
                found.append(path)
        return found


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _is_of_call(named: datetime, began: datetime) -> bool:
    return began.replace(microsecond=0) <= named <= began + NAMED_WITHIN


def _unlink(path: Path) -> None:
    with disk.translate_os_errors(f"remove {path}"):
        path.unlink(missing_ok=True)
