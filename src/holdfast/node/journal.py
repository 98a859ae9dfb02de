"""What the agent has begun, on the node's disk: after a crash it knows what to remove and where to go on.

One small JSON file for each run, replaced atomically and synced before the step that it announces. It never holds a
credential.
"""

from pathlib import Path

import msgspec
import structlog
from msgspec import Struct, structs

from holdfast.api.checkpointbackup import Phase
from holdfast.api.meta import Key
from holdfast.checkpoints import files as disk
from holdfast.checkpoints.images.image import ImageFacts
from holdfast.node.faults import RunFailure

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

SUFFIX = ".json"
COMPRESSED = ".tar.zst"


class ContainerRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One container of a run. calls: when the kubelet was asked without that its answer is known, in RFC 3339."""

    name: str
    facts: ImageFacts
    image: str = ""
    calls: tuple[str, ...] = ()
    archive: str = ""
    size: int = 0
    frozen_s: float = 0.0
    is_built: bool = False
    compressed: str = ""
    diff_id: str = ""
    digest: str = ""
    bytes: int = 0
    failure: RunFailure | None = None

    @property
    def is_pushed(self) -> bool:
        return bool(self.digest)

    @property
    def is_failed(self) -> bool:
        return self.failure is not None


class RunRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run. boot_id: of the machine's start, since files of another one may have lost their ends."""

    namespace: str
    backup: str
    uid: str
    run: int
    pod: str
    pod_uid: str
    boot_id: str
    phase: Phase | None = None
    containers: tuple[ContainerRecord, ...] = ()

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.backup)

    @property
    def file_name(self) -> str:
        return f"{self.uid}-{self.run}{SUFFIX}"

    def compressed_name(self, container: str) -> str:
        return f"{self.uid}-{self.run}-{container}{COMPRESSED}"

    def with_container(self, changed: ContainerRecord) -> "RunRecord":
        return structs.replace(
            self, containers=tuple(changed if each.name == changed.name else each for each in self.containers)
        )


class Journal:
    """The records in a folder of the agent's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> tuple[RunRecord, ...]:
        """The records that an earlier process left. What can't be read is removed: nothing else would ever do so."""
        with disk.translate_os_errors(f"use {self.folder} for the journal"):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A kubelet that makes the folder for the pod lets everybody look into it.
            self.folder.chmod(0o700)
            found = []
            for path in sorted(self.folder.iterdir()):
                if path.name.startswith(disk.PARTIAL):
                    path.unlink()
                elif path.suffix == SUFFIX and (record := self._read(path)) is not None:
                    found.append(record)
            return tuple(found)

    def write(self, record: RunRecord) -> None:
        with disk.translate_os_errors(f"write {self.folder / record.file_name}"):
            disk.write(self.folder / record.file_name, msgspec.json.encode(record))

    def remove(self, record: RunRecord) -> None:
        """With what a write that found no space has left."""
        for name in (record.file_name, f"{disk.PARTIAL}{record.file_name}"):
            with disk.translate_os_errors(f"remove {self.folder / name}"):
                (self.folder / name).unlink(missing_ok=True)

    def _read(self, path: Path) -> RunRecord | None:
        try:
            record = msgspec.json.decode(path.read_bytes(), type=RunRecord)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("journal entry removed, it can't be read", path=str(path), error=str(error))
            path.unlink()
            return None
        return record
