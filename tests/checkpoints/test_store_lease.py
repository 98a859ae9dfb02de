"""One job at a time writes to a store, whichever cluster it is of."""

import pytest

from holdfast.checkpoints.errors import Incomplete
from holdfast.checkpoints.object_store import ObjectStore
from holdfast.checkpoints.store import LEASE_S, CheckpointStore, Holder, StoreInUse, StoreLease, decode
from tests.checkpoints.backends import StoreBackend
from tests.checkpoints.memory import MemoryBucket


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> CheckpointStore:
    return ObjectStore(MemoryBucket())


def lease(uid: str, clock: Clock, attempt: int = 0) -> StoreLease:
    return StoreLease(Holder(uid=uid, name=f"ml/{uid}", attempt=attempt), clock)


def test_another_job_is_held_until_the_lease_is_released(backend: StoreBackend, clock: Clock) -> None:
    first, second = lease("first", clock), lease("second", clock)
    first.acquire(backend.store)
    with pytest.raises(StoreInUse, match=r"is in use by TrainingJob ml/first \(uid first\).*or use another prefix"):
        second.acquire(backend.store)
    first.must_hold()
    first.release(backend.store)
    second.acquire(backend.store)
    second.must_hold()
    assert second.is_lost is False
    with pytest.raises(StoreInUse, match="ml/second"):
        first.renew(backend.store)


def test_a_job_that_renews_keeps_its_lease_and_one_that_died_loses_it(store: CheckpointStore, clock: Clock) -> None:
    first, second = lease("first", clock), lease("second", clock)
    first.acquire(store)
    for _ in range(10):
        clock.now_s += LEASE_S / 2
        first.renew(store)
        with pytest.raises(StoreInUse):
            second.acquire(store)
    clock.now_s += LEASE_S - 1
    with pytest.raises(StoreInUse):
        second.acquire(store)
    clock.now_s += 1
    second.acquire(store)
    with pytest.raises(StoreInUse, match="ml/second"):
        first.renew(store)
    assert first.is_lost
    with pytest.raises(StoreInUse, match="ml/second"):
        first.must_hold()


def test_a_job_that_could_not_renew_its_lease_for_long_writes_nothing(store: CheckpointStore, clock: Clock) -> None:
    own = lease("first", clock)
    with pytest.raises(Incomplete, match="not renewed lately"):
        own.must_hold()
    own.acquire(store)
    clock.now_s += LEASE_S / 2
    own.must_hold()
    clock.now_s += 1
    with pytest.raises(Incomplete, match="not renewed lately"):
        own.must_hold()


def test_a_worker_that_watches_writes_no_lease_and_sees_that_another_job_has_it(
    store: CheckpointStore, clock: Clock
) -> None:
    own, watching, other = lease("first", clock), lease("first", clock), lease("second", clock)
    with pytest.raises(Incomplete, match="not renewed lately"):
        watching.must_hold()
    own.acquire(store)
    before = store.lease()
    watching.watch(store)
    watching.must_hold()
    assert store.lease() == before
    own.release(store)
    other.acquire(store)
    with pytest.raises(StoreInUse, match="ml/second"):
        watching.watch(store)
    assert watching.is_lost
    with pytest.raises(StoreInUse, match="ml/second"):
        watching.must_hold()


def test_of_two_that_acquire_it_at_once_one_has_it(store: CheckpointStore, clock: Clock) -> None:
    first, second = lease("first", clock), lease("second", clock)
    first.acquire(store)
    store.write_lease(b"")  # the second one looks before the first one writes, and writes after it
    second.acquire(store)
    with pytest.raises(StoreInUse, match="ml/second"):
        first.renew(store)
    second.renew(store)


def test_the_next_attempt_of_the_job_has_it_at_once_and_an_old_one_does_not_give_it_away(
    store: CheckpointStore, clock: Clock
) -> None:
    old, new = lease("first", clock, attempt=0), lease("first", clock, attempt=1)
    old.acquire(store)
    new.acquire(store)
    old.renew(store)
    old.release(store)
    held = decode(store.lease())
    assert held is not None
    assert (held.attempt, held.released) == (1, False)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"uid": 1}', b"[" * 50_000, b"\xff"])
def test_what_is_no_lease_holds_nobody(content: bytes, store: CheckpointStore, clock: Clock) -> None:
    store.write_lease(content)
    lease("first", clock).acquire(store)
