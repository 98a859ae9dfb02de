"""The interface of a checkpoint store, whether it is a volume or an object store."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from holdfast.checkpoints.errors import CheckpointNotFound
from holdfast.checkpoints.files import FileEntry
from holdfast.checkpoints.manifest import ATTEMPT, CheckpointName, Manifest, SaveInfo

DECISION_SUFFIX = ".decision"
NO_METRICS: Mapping[str, float] = MappingProxyType({})
LEASE = ".holdfast-lease.json"


class Store(Protocol):
    """The checkpoints of one job. Nothing outside the job's own prefix is ever read or written."""

    @property
    def address(self) -> str:
        """The address of the store for messages; never with credentials."""
        ...

    def names(self, until: int) -> list[CheckpointName]:
        """Every checkpoint of the attempts up to `until`, newest first, complete or not."""
        ...

    def manifest(self, name: CheckpointName) -> Manifest | None:
        """None without a manifest: the checkpoint does not count. Raises UnsafeContent if it can't be used."""
        ...

    def put(
        self,
        name: CheckpointName,
        source: Path,
        about: SaveInfo,
        expected: tuple[FileEntry, ...] | None = None,
        *,
        metrics: Mapping[str, float] = NO_METRICS,
    ) -> Manifest:
        """Store the complete checkpoint in the folder `source`; its manifest comes last. May be repeated at any time.

        A checkpoint stored under the same name stays valid until then. expected: the files that were found complete;
        raises Incomplete if the folder holds other files by now. metrics: the metrics of the epoch, used where the
        markers of the checkpoint have none.
        """
        ...

    def write_missing_manifest(self, name: CheckpointName, about: SaveInfo) -> Manifest | None:
        """Write the manifest for a checkpoint of an attempt that is over, if the checkpoint is complete."""
        ...

    def get(self, name: CheckpointName, target: Path) -> Manifest:
        """Put the checkpoint into the folder `target`, complete and verified, or raise and leave `target` unchanged."""
        ...

    def verify(self, name: CheckpointName) -> Manifest:
        """Read all files, and raise Corrupt if a file differs from what was saved."""
        ...

    def delete(self, name: CheckpointName) -> None: ...

    def quarantine(self, name: CheckpointName) -> str:
        """Move a damaged checkpoint to where nothing reads or deletes it, and return its new address."""
        ...

    def read_decision(self, attempt: int) -> bytes | None:
        """The stored resume decision for the workers of an attempt."""
        ...

    def write_decision(self, attempt: int, content: bytes) -> None: ...

    def lease(self) -> bytes | None:
        """The stored lease: which job may write to the store, see the module `lease`."""
        ...

    def write_lease(self, content: bytes) -> None: ...

    def decided_attempts(self) -> list[int]:
        """The attempts that have a stored resume decision, in order."""
        ...


def require_manifest(store: Store, name: CheckpointName) -> Manifest:
    """The manifest of a checkpoint; raises CheckpointNotFound without one."""
    manifest = store.manifest(name)
    if manifest is None:
        raise CheckpointNotFound(f"there is no complete {name} in {store.address}")
    return manifest


def decision_path(attempt: int) -> str:
    """The path of a resume decision, beside the attempts' folders."""
    return f"attempt-{attempt}{DECISION_SUFFIX}"


def decided_attempts(files: Iterable[str]) -> list[int]:
    """The attempts whose resume decisions are among these files."""
    folders = (file.removesuffix(DECISION_SUFFIX) for file in files if file.endswith(DECISION_SUFFIX))
    return sorted(int(match[1]) for match in map(ATTEMPT.fullmatch, folders) if match)
