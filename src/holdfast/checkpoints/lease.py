"""The lease of a checkpoint store: only the job that holds the lease may write there.

Two clusters do not see each other's jobs, and both may share a bucket. The holder renews its lease while it runs and
releases the lease at its end. Another job takes over a lease that is released, or that has not been renewed for a while
by the clock of the waiting job: the clocks of two clusters are never compared.
"""

import json
from collections.abc import Callable

from msgspec import Struct

from holdfast.checkpoints.errors import CheckpointError, Incomplete
from holdfast.checkpoints.store import Store

RENEW_S = 60.0
LEASE_S = 240.0


class InUse(CheckpointError):
    """Another job holds the lease; that job may end, or stop renewing."""


class Holder(Struct, frozen=True, kw_only=True):
    """`name` is for messages; `renewals` makes each renewal differ from the one before."""

    uid: str
    name: str
    attempt: int
    renewals: int = 0
    released: bool = False


class Lease:
    """A job's lease of its store; `clock` is monotonic. The lease has to be acquired before the first write."""

    def __init__(self, holder: Holder, clock: Callable[[], float], *, lease_s: float = LEASE_S) -> None:
        self._holder = holder
        self._clock = clock
        self._lease_s = lease_s
        self._seen: tuple[bytes, float] | None = None
        self._renewed_s: float | None = None
        self._renewals = 0
        self._lost_message = ""

    def acquire(self, store: Store) -> None:
        """Raises InUse while another job holds the lease. If two jobs acquire it at once, the last writer holds it."""
        self.renew(store)
        self._check(store)

    def renew(self, store: Store) -> None:
        holder = self.watch(store)
        if holder is not None and holder.uid == self._holder.uid and holder.attempt > self._holder.attempt:
            return  # a later attempt of the same job holds the lease
        self._renewals += 1
        store.write_lease(_encode(self._holder, self._renewals, released=False))

    def watch(self, store: Store) -> Holder | None:
        """The stored holder. Raises InUse if another job holds the lease.

        For a worker that leaves renewing to worker 0, this is as good as a renewal.
        """
        try:
            holder = self._check(store)
        except InUse as error:
            self._lost_message = str(error)
            raise
        self._lost_message = ""
        self._renewed_s = self._clock()
        return holder

    def release(self, store: Store) -> None:
        """Release the lease, unless another job or attempt holds it by now."""
        holder = decode(store.lease())
        if holder is not None and (holder.uid, holder.attempt) == (self._holder.uid, self._holder.attempt):
            store.write_lease(_encode(self._holder, self._renewals, released=True))

    def must_hold(self) -> None:
        """Raises unless the lease is known to be held: otherwise a write could overwrite another job's data."""
        if self._lost_message:
            raise InUse(self._lost_message)
        if self._renewed_s is None or self._clock() - self._renewed_s > self._lease_s / 2:
            raise Incomplete("the lease of the place for checkpoints was not renewed lately: it is tried again")

    @property
    def is_lost(self) -> bool:
        return bool(self._lost_message)

    def _check(self, store: Store) -> Holder | None:
        content = store.lease()
        holder = decode(content)
        if content is None or holder is None or holder.released or holder.uid == self._holder.uid:
            return holder
        if self._seen is None or self._seen[0] != content:
            self._seen = content, self._clock()
        left_s = self._seen[1] + self._lease_s - self._clock()
        if left_s <= 0:
            return None
        raise InUse(
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
