"""The interface of a checkpoint store, a volume or an object store; the lease of a job on its store."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from holdfast.checkpoints.errors import CheckpointError, CheckpointNotFound, Incomplete
from holdfast.checkpoints.files import FileEntry
from holdfast.checkpoints.manifest import ATTEMPT, CheckpointManifest, CheckpointName, SaveInfo

DECISION_SUFFIX = ".decision"
NO_METRICS: Mapping[str, float] = MappingProxyType({})
LEASE = ".holdfast-lease.json"


class CheckpointStore(Protocol):
    """The checkpoints of one job. Nothing outside the job's own prefix is ever read or written."""

    @property
    def address(self) -> str:
        """The address of the store for messages; never with credentials."""
        ...

    def names(self, until: int) -> list[CheckpointName]:
        """Every checkpoint of the attempts up to `until`, newest first, complete or not."""
        ...

    def manifest(self, name: CheckpointName) -> CheckpointManifest | None:
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
    ) -> CheckpointManifest:
        """Store the complete checkpoint in the folder `source`; its manifest comes last. May be repeated at any time.

        A checkpoint stored under the same name stays valid until then. expected: the files that were found complete;
        raises Incomplete if the folder holds other files by now. metrics: the metrics of the epoch, used where the
        markers of the checkpoint have none.
        """
        ...

    def write_missing_manifest(self, name: CheckpointName, about: SaveInfo) -> CheckpointManifest | None:
        """Write the manifest for a checkpoint of an attempt that is over, if the checkpoint is complete."""
        ...

    def get(self, name: CheckpointName, target: Path) -> CheckpointManifest:
        """Put the checkpoint into the folder `target`, complete and verified, or raise and leave `target` unchanged."""
        ...

    def verify(self, name: CheckpointName) -> CheckpointManifest:
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


def require_manifest(store: CheckpointStore, name: CheckpointName) -> CheckpointManifest:
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


# The lease of a checkpoint store: only the job that holds the lease may write there.
#
# Two clusters do not see each other's jobs, and both may share a bucket. The holder renews its lease while it runs and
# releases the lease at its end. Another job takes over a lease that is released, or that has not been renewed for a
# while by the clock of the waiting job: the clocks of two clusters are never compared.


RENEW_S = 60.0
LEASE_S = 240.0


class StoreInUse(CheckpointError):
    """Another job holds the lease; that job may end, or stop renewing."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """`name` is for messages; `renewals` makes each renewal differ from the one before."""

    uid: str
    name: str
    attempt: int
    renewals: int = 0
    released: bool = False


class StoreLease:
    """A job's lease of its store; `clock` is monotonic. The lease has to be acquired before the first write."""

    def __init__(self, holder: Holder, clock: Callable[[], float], *, lease_s: float = LEASE_S) -> None:
        self._holder = holder
        self._clock = clock
        self._lease_s = lease_s
        self._seen: tuple[bytes, float] | None = None
        self._renewed_s: float | None = None
        self._renewals = 0
        self._lost_message = ""

    def acquire(self, store: CheckpointStore) -> None:
        """Raises InUse while another job holds the lease. If two jobs acquire it at once, the last writer holds it."""
        self.renew(store)
        self._check(store)

    def renew(self, store: CheckpointStore) -> None:
        holder = self.watch(store)
        if holder is not None and holder.uid == self._holder.uid and holder.attempt > self._holder.attempt:
            return  # a later attempt of the same job holds the lease
        self._renewals += 1
        store.write_lease(_encode(self._holder, self._renewals, released=False))

    def watch(self, store: CheckpointStore) -> Holder | None:
        """The stored holder. Raises InUse if another job holds the lease.

        For a worker that leaves renewing to worker 0, this is as good as a renewal.
        """
        try:
            holder = self._check(store)
        except StoreInUse as error:
            self._lost_message = str(error)
            raise
        self._lost_message = ""
        self._renewed_s = self._clock()
        return holder

    def release(self, store: CheckpointStore) -> None:
        """Release the lease, unless another job or attempt holds it by now."""
        holder = decode(store.lease())
        if holder is not None and (holder.uid, holder.attempt) == (self._holder.uid, self._holder.attempt):
            store.write_lease(_encode(self._holder, self._renewals, released=True))

    def must_hold(self) -> None:
        """Raises unless the lease is known to be held: otherwise a write could overwrite another job's data."""
        if self._lost_message:
            raise StoreInUse(self._lost_message)
        if self._renewed_s is None or self._clock() - self._renewed_s > self._lease_s / 2:
            raise Incomplete("the lease of the place for checkpoints was not renewed lately: it is tried again")

    @property
    def is_lost(self) -> bool:
        return bool(self._lost_message)

    def _check(self, store: CheckpointStore) -> Holder | None:
        content = store.lease()
        holder = decode(content)
        if content is None or holder is None or holder.released or holder.uid == self._holder.uid:
            return holder
        if self._seen is None or self._seen[0] != content:
            self._seen = content, self._clock()
        left_s = self._seen[1] + self._lease_s - self._clock()
        if left_s <= 0:
            return None
        raise StoreInUse(
            f"{store.address} is in use by TrainingJob {holder.name} (uid {holder.uid}), perhaps of another cluster: "
            f"this job waits until that one ends or was silent for {self._lease_s:g} s; or use another prefix"
        )


def _encode(holder: Holder, renewals: int, *, released: bool) -> bytes:
    fields = {"uid": holder.uid, "name": holder.name, "attempt": holder.attempt}
    return json.dumps({**fields, "renewals": renewals, "released": released}).encode()


def decode(content: bytes | None) -> Holder | None:
    """None for content that is not a lease."""
    try:
        fields = json.loads(content or b"")
        uid, name, attempt, released = fields["uid"], fields["name"], fields["attempt"], fields["released"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(uid, str) or not isinstance(name, str) or type(attempt) is not int:
        return None
    return Holder(uid=uid[:253], name=name[:520], attempt=attempt, released=released is True)
