"""What the rest of holdfast asks of a place for checkpoints, whether it is a volume or an object store."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from holdfast.checkpoints.errors import CheckpointNotFound
from holdfast.checkpoints.files import FileEntry
from holdfast.checkpoints.manifest import ATTEMPT, CheckpointName, Manifest, SaveInfo

NOTE = ".decision"
NO_METRICS: Mapping[str, float] = MappingProxyType({})
LEASE = ".holdfast-lease.json"


class Store(Protocol):
    """One job's checkpoints. Nothing outside the job's own prefix is ever read or written."""

    @property
    def address(self) -> str:
        """Where it is, for people; never with credentials."""
        ...

    def names(self, until: int) -> list[CheckpointName]:
        """Every checkpoint of the attempts up to `until`, newest first, whether it is whole or not."""
        ...

    def manifest(self, name: CheckpointName) -> Manifest | None:
        """None if there is none, so that the checkpoint does not count; raises BadManifest if it can't be used."""
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
        """Keep the complete checkpoint in the folder `source`; its manifest comes last. May be repeated at any time.

        What was kept under that name before stays valid until then. expected: what was found complete; where something
        else is there by now, it raises Incomplete. metrics: of its epoch, where its own markers give none.
        """
        ...

    def write_missing_manifest(self, name: CheckpointName, about: SaveInfo) -> Manifest | None:
        """A manifest for a checkpoint of an attempt that is over, if it turns out to be complete."""
        ...

    def get(self, name: CheckpointName, target: Path) -> Manifest:
        """Put the checkpoint into the folder `target`, whole and checked, or raise and leave it alone."""
        ...

    def verify(self, name: CheckpointName) -> Manifest:
        """Read everything, and raise Corrupt if something is not as it was saved."""
        ...

    def delete(self, name: CheckpointName) -> None: ...

    def quarantine(self, name: CheckpointName) -> str:
        """Set a damaged checkpoint aside, where nothing reads or deletes it; where that is."""
        ...

    def read_decision(self, attempt: int) -> bytes | None:
        """What was written down for the workers of an attempt."""
        ...

    def write_decision(self, attempt: int, content: bytes) -> None: ...

    def lease(self) -> bytes | None:
        """Who may write here, see `lease`."""
        ...

    def write_lease(self, content: bytes) -> None: ...

    def decided_attempts(self) -> list[int]:
        """The attempts that something was written down for, in order."""
        ...


def require_manifest(store: Store, name: CheckpointName) -> Manifest:
    """The manifest of a checkpoint that must be there."""
    manifest = store.manifest(name)
    if manifest is None:
        raise CheckpointNotFound(f"there is no complete {name} in {store.address}")
    return manifest


def decision_path(attempt: int) -> str:
    """Where a note is, beside the attempts' folders."""
    return f"attempt-{attempt}{NOTE}"


def decided_attempts(files: Iterable[str]) -> list[int]:
    """The attempts whose notes are among these files."""
    folders = (file.removesuffix(NOTE) for file in files if file.endswith(NOTE))
    return sorted(int(match[1]) for match in map(ATTEMPT.fullmatch, folders) if match)
