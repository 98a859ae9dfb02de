"""Workers that find each other, add up, and notice when one is gone: in threads, over real sockets."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import TypeVar

import numpy as np
import pytest

from holdfast.trainer.allreduce import Group, Peer, RankZero, join
from holdfast.trainer.connection import DATA, HEADER, Handshake, Link
from holdfast.trainer.settings import GroupError, InvalidTrainerSetting, RankInfo, WorkerFailed, WorkerLost
from tests.trainer.workers import PORT, WAIT_S, loopback

T = TypeVar("T")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def places(size: int) -> list[RankInfo]:
    host = loopback()
    return [RankInfo(rank=rank, size=size, host=host, port=PORT) for rank in range(size)]


@contextmanager
def joined(pool: ThreadPoolExecutor, size: int) -> Iterator[list[Group]]:
    coming = [pool.submit(join, place, "same", WAIT_S) for place in places(size)]
    with ExitStack() as stack:
        yield [stack.enter_context(closing(future.result(WAIT_S))) for future in coming]


def everywhere(pool: ThreadPoolExecutor, groups: list[Group], call: Callable[[Group], T]) -> list[T]:
    return [future.result(WAIT_S) for future in [pool.submit(call, group) for group in groups]]


def connected(silence_s: float = WAIT_S) -> tuple[Link, Link]:
    """Both ends of one connection: what worker 0 holds of worker 1, and the other way round."""
    with socket.create_server((loopback(), 0)) as listener:
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
    return Link(here, 1, silence_s), Link(there, 0, silence_s)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_everybody_gets_the_sum_of_all(pool: ThreadPoolExecutor, size: int) -> None:
    with joined(pool, size) as groups:
        assert [(group.rank, group.size) for group in groups] == [(rank, size) for rank in range(size)]
        sums = everywhere(pool, groups, lambda group: group.sum(np.array([group.rank, 1.0])))
    assert [found.tolist() for found in sums] == [[sum(range(size)), size]] * size


def test_a_sum_is_added_in_the_order_of_the_ranks(pool: ThreadPoolExecutor) -> None:
    values = [1e16, 1.0, -1e16]
    with joined(pool, 3) as groups:
        sums = everywhere(pool, groups, lambda group: group.sum(np.array([values[group.rank]])))
    assert [found[0] for found in sums] == [1e16 + 1.0 - 1e16] * 3


def test_many_large_sums_do_not_get_mixed_up(pool: ThreadPoolExecutor) -> None:
    def add_up(group: Group) -> list[float]:
        return [float(group.sum(np.full(100_000, step * (group.rank + 1.0))).max()) for step in range(20)]

    with joined(pool, 3) as groups:
        found = everywhere(pool, groups, add_up)
    assert found == [[step * 6.0 for step in range(20)]] * 3


@pytest.mark.parametrize("size", [1, 3])
def test_everybody_gets_what_worker_0_broadcasts(pool: ThreadPoolExecutor, size: int) -> None:
    with joined(pool, size) as groups:
        assert everywhere(pool, groups, lambda group: group.broadcast(b"from %d" % group.rank)) == [b"from 0"] * size


def test_a_lost_worker_is_named_by_worker_0_while_another_still_computes(pool: ThreadPoolExecutor) -> None:
    with joined(pool, 3) as groups:
        groups[2].close()
        with pytest.raises(WorkerLost, match="lost worker 2: it closed the connection"):
            groups[0].sum(np.zeros(3))


def test_a_lost_worker_0_is_named_by_the_others(pool: ThreadPoolExecutor) -> None:
    with joined(pool, 2) as groups:
        groups[0].close()
        with pytest.raises(WorkerLost, match="lost worker 0"):
            groups[1].sum(np.zeros(200_000))


def test_the_reason_of_a_failure_reaches_every_worker_with_its_exit_code(pool: ThreadPoolExecutor) -> None:
    def work(group: Group) -> WorkerFailed | None:
        if group.rank == 2:
            group.fail(InvalidTrainerSetting("DATA_DIR is empty"))
            return None
        try:
            group.sum(np.zeros(3))
        except WorkerFailed as failure:
            group.fail(failure)
            return failure
        return None

    with joined(pool, 4) as groups:
        found = everywhere(pool, groups, work)
    assert [(str(each), each.exit_code) for each in found if each] == [("worker 2: DATA_DIR is empty", 2)] * 3


def test_the_reason_is_found_even_by_one_that_was_still_sending() -> None:
    here, there = connected()
    with closing(there):
        here.fail("worker 0: the disk is full", 1)
        here.close()
        with pytest.raises(WorkerFailed, match="the disk is full"):
            there.send(bytes(50_000_000))


def test_a_worker_that_says_nothing_is_given_up() -> None:
    here, there = connected()
    with closing(here), closing(there), pytest.raises(WorkerLost, match=r"lost worker 1: nothing came for 0\.1 s"):
        RankZero({1: here}, silence_s=0.1).sum(np.zeros(1))


def test_half_a_message_is_given_up_too() -> None:
    here, there = connected(silence_s=0.1)
    with closing(here), closing(there):
        there._connection.sendall(HEADER.pack(DATA, 100) + b"half")
        with pytest.raises(WorkerLost, match="nothing came for"):
            here.receive(100)


@pytest.mark.parametrize("sent", [b"X" + bytes(8), HEADER.pack(DATA, 2**60), HEADER.pack(b"F", 2**60)])
def test_what_no_worker_would_send_is_not_believed(sent: bytes) -> None:
    here, there = connected()
    with closing(here), closing(there):
        there._connection.sendall(sent)
        with pytest.raises(WorkerLost, match="worker 1 does not speak as a worker"):
            here.receive(100)


def test_last_words_that_can_t_be_read_are_still_an_end() -> None:
    here, there = connected()
    with closing(here), closing(there):
        there._connection.sendall(HEADER.pack(b"F", 3) + b"???")
        with pytest.raises(WorkerFailed, match="could not be read"):
            here.receive(100)


@pytest.mark.parametrize("length", [0, 8, 24])
def test_a_vector_of_another_length_is_refused(length: int) -> None:
    here, there = connected()
    with closing(here), closing(there):
        there.send(bytes(length))
        with pytest.raises(WorkerLost, match="worker 1"):
            RankZero({1: here}).sum(np.zeros(2))


def test_a_sum_of_another_length_is_refused() -> None:
    here, there = connected()
    with closing(here), closing(there):
        here.send(bytes(8))
        with pytest.raises(WorkerLost, match="worker 0 sent 8 bytes, not 16"):
            Peer(there, RankInfo(rank=1, size=2)).sum(np.zeros(2))


def test_workers_may_come_before_worker_0(pool: ThreadPoolExecutor) -> None:
    first, second = places(2)
    early = pool.submit(join, second, "same", WAIT_S)
    with closing(join(first, "same", WAIT_S)), closing(early.result(WAIT_S)) as worker:
        assert worker.rank == 1


def test_worker_0_names_the_ranks_that_did_not_come_to_those_that_did(pool: ThreadPoolExecutor) -> None:
    where = places(4)
    hub, came = pool.submit(join, where[0], "same", 1.5), pool.submit(join, where[2], "same", WAIT_S)
    with pytest.raises(GroupError, match=r"2 of 4 workers did not come to .* within 1\.5 s: worker 1, 3"):
        hub.result(WAIT_S)
    with pytest.raises(WorkerFailed, match="worker 0: 2 of 4 workers did not come"):
        came.result(WAIT_S)


def test_a_worker_that_finds_nobody_says_where_it_looked() -> None:
    _, second = places(2)
    with pytest.raises(GroupError, match=rf"not welcomed by worker 0 at {second.host}:{PORT} within 0\.1 s .*refused"):
        join(second, "same", 0.1)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_name_that_does_not_resolve_is_an_error_after_the_time(rank: int) -> None:
    with pytest.raises(GroupError, match=r"nowhere\.invalid"):
        join(RankInfo(rank=rank, size=2, host="nowhere.invalid", port=PORT), "same", 0.1)


def test_an_address_in_use_is_said_at_once() -> None:
    place = places(2)[0]
    with (
        socket.create_server((place.host, place.port)),
        pytest.raises(GroupError, match=f"can't listen on {place.host}:{PORT} .*: Address already in use"),
    ):
        join(place, "same", WAIT_S)


def test_an_address_of_another_machine_is_said_at_once() -> None:
    with pytest.raises(GroupError, match=r"can't listen on 192\.0\.2\.1:.*: Cannot assign requested address"):
        join(RankInfo(rank=0, size=2, host="192.0.2.1", port=PORT), "same", WAIT_S)


def knock(place: RankInfo, content: bytes) -> socket.socket:
    while True:
        try:
            connection = socket.create_connection((place.host, place.port), timeout=WAIT_S)
        except ConnectionRefusedError:
            continue  # not listening yet
        connection.sendall(content)
        return connection


STRANGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01" + bytes(20),
    HEADER.pack(DATA, 3) + b"abc",
    HEADER.pack(DATA, 2) + b"[]",
    HEADER.pack(DATA, 13) + b'{"holdfast":2',
    struct.pack("!cQ", DATA, 2**63),
]


@pytest.mark.parametrize("content", STRANGE)
def test_a_stranger_at_the_port_does_not_disturb(
    pool: ThreadPoolExecutor, content: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = places(2)
    hub = pool.submit(join, first, "same", WAIT_S)
    with closing(knock(first, content)) as stranger, contextlib.suppress(ConnectionResetError):
        assert stranger.recv(1) == b"", "shown the door"
    with closing(join(second, "same", WAIT_S)), closing(hub.result(WAIT_S)):
        assert "it is no worker" in capfd.readouterr().err


def refused(pool: ThreadPoolExecutor, stranger: RankInfo, digest: str) -> WorkerFailed:
    """What one who does not belong here is told, while the others find each other all the same."""
    where = places(3)
    hub = pool.submit(join, where[0], "same", WAIT_S)
    one = pool.submit(join, where[1], "same", WAIT_S)
    hello = Handshake(stranger.rank, stranger.size, digest).encode()
    told: WorkerFailed | None = None
    while told is None:
        connection = knock(where[0], HEADER.pack(DATA, len(hello)) + hello)
        with closing(Link(connection, 0, WAIT_S)) as link:
            try:
                link.receive(0)
            except WorkerFailed as failure:
                told = failure
    with closing(join(where[2], "same", WAIT_S)), closing(hub.result(WAIT_S)), closing(one.result(WAIT_S)):
        return told


@pytest.mark.parametrize(
    ("place", "digest", "said"),
    [
        (RankInfo(rank=2, size=3), "other", "settings or attempt are not those of worker 0"),
        (RankInfo(rank=3, size=4), "same", "this training has 3 workers: there is no place for worker 3 of 4"),
        (RankInfo(rank=0, size=3), "same", "no place for worker 0 of 3"),
        (RankInfo(rank=-1, size=3), "same", "no place for worker -1 of 3"),
    ],
)
def test_a_worker_that_does_not_belong_gets_the_reason(
    pool: ThreadPoolExecutor, place: RankInfo, digest: str, said: str
) -> None:
    assert said in str(refused(pool, place, digest))


def test_a_second_worker_of_the_same_rank_gets_that_as_the_reason(pool: ThreadPoolExecutor) -> None:
    first, second, third = places(3)
    hub = pool.submit(join, first, "same", WAIT_S)
    twins: list[Future[Group]] = [pool.submit(join, second, "same", WAIT_S) for _ in range(2)]
    ended = threading.Event()
    for twin in twins:
        twin.add_done_callback(lambda _: ended.set())
    assert ended.wait(WAIT_S), "one of the two is refused before the third comes"
    with closing(join(third, "same", WAIT_S)), closing(hub.result(WAIT_S)):
        failures = [error for twin in twins if (error := twin.exception(WAIT_S)) is not None]
        assert [str(error) for error in failures] == ["there is a worker 1 already: give every worker its own rank"]
        next(twin.result() for twin in twins if twin.exception() is None).close()


def test_a_worker_that_leaves_before_all_are_there_ends_the_waiting(pool: ThreadPoolExecutor) -> None:
    first, second, _ = places(3)
    hub = pool.submit(join, first, "same", WAIT_S)
    hello = Handshake(second.rank, 3, "same").encode()
    knock(first, HEADER.pack(DATA, len(hello)) + hello).close()
    with pytest.raises(WorkerLost, match="lost worker 1"):
        hub.result(WAIT_S)
