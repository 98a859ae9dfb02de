"""Which job may write to a place for checkpoints: the one that holds the lease there.

Two clusters do not see each other's jobs, and a bucket may be shared by both. The holder renews its lease while it runs
and releases it at its end. Another job takes over what is released, or what has not been renewed for a while by the
clock of the job that waits: the clocks of two clusters are never compared.
"""

import json
from collections.abc import Callable

from msgspec import Struct

from holdfast.checkpoints.errors import CheckpointError, Incomplete
from holdfast.checkpoints.store import Store

RENEW_S = 60.0
LEASE_S = 240.0


class InUse(CheckpointError):
    """Another job holds the lease; it may end, or stop renewing."""


class Holder(Struct, frozen=True, kw_only=True):
    """`name` is for people; `renewals` makes each renewal differ from the one before."""

    uid: str
    name: str
    attempt: int
    renewals: int = 0
    released: bool = False


class Lease:
    """A job's claim to its place; `clock` only goes forward. One that holds nothing yet has to acquire it first."""

    def __init__(self, holder: Holder, clock: Callable[[], float], *, lease_s: float = LEASE_S) -> None:
        self._holder = holder
        self._clock = clock
        self._lease_s = lease_s
        self._seen: tuple[bytes, float] | None = None
        self._renewed_s: float | None = None
        self._renewals = 0
        self._lost = ""

    def acquire(self, store: Store) -> None:
        """Raises InUse while another job holds it. Of two that acquire it at once, the one that wrote last has it."""
        self.renew(store)
        self._check(store)

    def renew(self, store: Store) -> None:
        found = self.watch(store)
        if found is not None and found.uid == self._holder.uid and found.attempt > self._holder.attempt:
            return  # a later attempt of the same job has it
        self._renewals += 1
        store.write_lease(_encode(self._holder, self._renewals, released=False))

    def watch(self, store: Store) -> Holder | None:
        """What the lease says. Raises InUse where another job holds it. For a worker that leaves renewing to worker 0,
        this is as good as a renewal."""
        try:
            found = self._check(store)
        except InUse as error:
            self._lost = str(error)
            raise
        self._lost = ""
        self._renewed_s = self._clock()
        return found

    def release(self, store: Store) -> None:
        """Nothing if somebody else has it by now."""
        found = decode(store.lease())
        if found is not None and (found.uid, found.attempt) == (self._holder.uid, self._holder.attempt):
            store.write_lease(_encode(self._holder, self._renewals, released=True))

    def must_hold(self) -> None:
        """Raises unless the lease is known to be held: what is written now might be another job's."""
        if self._lost:
            raise InUse(self._lost)
        if self._renewed_s is None or self._clock() - self._renewed_s > self._lease_s / 2:
            raise Incomplete("the lease of the place for checkpoints was not renewed lately: it is tried again")

    @property
    def is_lost(self) -> bool:
        return bool(self._lost)

    def _check(self, store: Store) -> Holder | None:
        content = store.lease()
        found = decode(content)
        if content is None or found is None or found.released or found.uid == self._holder.uid:
            return found
        if self._seen is None or self._seen[0] != content:
            self._seen = content, self._clock()
        left_s = self._seen[1] + self._lease_s - self._clock()
        if left_s <= 0:
            return None
        raise InUse(
            f"{store.address} is in use by TrainingJob {found.name} (uid {found.uid}), perhaps of another cluster: "
            f"this job waits until that one ends or was silent for {self._lease_s:g} s; or use another prefix"
        )


def _encode(holder: Holder, renewals: int, *, released: bool) -> bytes:
    facts = {"uid": holder.uid, "name": holder.name, "attempt": holder.attempt}
    return json.dumps({**facts, "renewals": renewals, "released": released}).encode()


def decode(content: bytes | None) -> Holder | None:
    """None for what is no lease."""
    try:
        facts = json.loads(content or b"")
        uid, name, attempt, released = facts["uid"], facts["name"], facts["attempt"], facts["released"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(uid, str) or not isinstance(name, str) or type(attempt) is not int:
        return None
    return Holder(uid=uid[:253], name=name[:520], attempt=attempt, released=released is True)
