"""A group of one."""

import contextlib
import os
import selectors
import socket
import sys
import time
from typing import Protocol

import numpy as np

from holdfast.trainer.connection import LIMIT, SILENCE_S, Handshake, Link, decode, rejection_reason, with_rank
from holdfast.trainer.model import Doubles
from holdfast.trainer.settings import GroupError, RankInfo, TrainerError, WorkerLost


class Alone:
    rank = 0
    size = 1

    def sum(self, values: Doubles) -> Doubles:
        return values

    def broadcast(self, payload: bytes) -> bytes:
        return payload

    def fail(self, error: TrainerError) -> None:
        """There is nobody to tell."""

    def close(self) -> None:
        """There is nothing to close."""


# Worker 0: listens until all others have come, then adds up what they send.

# One that connects and says nothing is not waited for: the others queue behind it.
HELLO_S = 5.0
RESOLVE_AGAIN_S = 0.5
UNKNOWN = -1


class RankZero:
    rank = 0

    def __init__(self, links: dict[int, Link], silence_s: float = SILENCE_S) -> None:
        self.size = len(links) + 1
        self._links = [links[rank] for rank in sorted(links)]
        self._silence_s = silence_s
        for link in self._links:
            link.set_silence(silence_s)

    def sum(self, values: Doubles) -> Doubles:
        parts = self._receive_all(values.nbytes)
        total = values.copy()
        for link in self._links:
            total += np.frombuffer(parts[link.worker])
        self._send_all(total.tobytes())
        return total

    def broadcast(self, payload: bytes) -> bytes:
        self._send_all(payload)
        return payload

    def fail(self, error: TrainerError) -> None:
        for link in self._links:
            link.fail(with_rank(0, error), error.exit_code)

    def close(self) -> None:
        for link in self._links:
            link.close()

    def _receive_all(self, size: int) -> dict[int, bytearray]:
        """One message from each, in the order in which they come: a lost worker is noticed while another computes."""
        parts: dict[int, bytearray] = {}
        with selectors.DefaultSelector() as selector:
            for link in self._links:
                selector.register(link, selectors.EVENT_READ, link)
            while len(parts) < len(self._links):
                ready = selector.select(self._silence_s)
                if not ready:
                    silent = ", ".join(str(link.worker) for link in self._links if link.worker not in parts)
                    raise WorkerLost(f"lost worker {silent}: nothing came for {self._silence_s:g} s")
                for key, _ in ready:
                    link = key.data
                    parts[link.worker] = link.receive(size)
                    if len(parts[link.worker]) != size:
                        raise WorkerLost(f"worker {link.worker} sent {len(parts[link.worker])} bytes, not {size}")
                    selector.unregister(link)
        return parts

    def _send_all(self, payload: bytes) -> None:
        for link in self._links:
            link.send(payload)


def gather_workers(place: RankInfo, digest: str, timeout_s: float) -> RankZero:
    deadline = time.monotonic() + timeout_s
    links: dict[int, Link] = {}
    try:
        with _listen(place, deadline) as listener:
            while len(links) < place.size - 1:
                if not _admit_next(listener, place, digest, links, deadline):
                    raise GroupError(_missing(place, links, timeout_s))
        hub = RankZero(links)
        hub.broadcast(b"")  # the welcome: all are here
    except TrainerError as error:
        for link in links.values():
            link.fail(with_rank(0, error), error.exit_code)
            link.close()
        raise
    return hub


def _admit_next(listener: socket.socket, place: RankInfo, digest: str, links: dict[int, Link], deadline: float) -> bool:
    """Wait for the next that comes, and for those who are here to stay; false when the time is over."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        for link in links.values():
            selector.register(link, selectors.EVENT_READ, link)
        ready = selector.select(max(deadline - time.monotonic(), 0))
    for key, _ in ready:
        if key.data is not None:
            key.data.receive(0)  # nobody speaks before the welcome: this raises what has become of it
        elif (newcomer := _admit(listener, place, digest, links)) is not None:
            links[newcomer.worker] = newcomer
    return bool(ready)


def _listen(place: RankInfo, deadline: float) -> socket.socket:
    """On the address that the others are told: several trainings on one machine may share the port's number."""
    family, address = _resolve(place, deadline)
    try:
        listener = socket.create_server(address, family=family, backlog=place.size)
    except OSError as error:
        where = f"{place.host}:{place.port} ({address[0]})"
        reason = os.strerror(error.errno) if error.errno else error  # strerror would repeat the address
        raise GroupError(f"worker 0 can't listen on {where}: {reason}") from error
    listener.settimeout(HELLO_S)  # one that knocks and goes must not leave accept waiting
    return listener


def _resolve(place: RankInfo, deadline: float) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """A pod's own name may take a moment to be known."""
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            if time.monotonic() > deadline:
                raise GroupError(f"worker 0 can't resolve its own name {place.host}: {error.strerror}") from error
            time.sleep(RESOLVE_AGAIN_S)
        else:
            return family, (str(address[0]), place.port)


def _admit(listener: socket.socket, place: RankInfo, digest: str, links: dict[int, Link]) -> Link | None:
    try:
        connection, address = listener.accept()
    except OSError:  # it was gone again
        return None
    with contextlib.ExitStack() as unless_admitted:
        link = unless_admitted.enter_context(contextlib.closing(Link(connection, UNKNOWN, HELLO_S)))
        try:
            hello = decode(link.receive(LIMIT))
        except GroupError:
            hello = None
        if hello is None:
            _warn(f"ignored a connection from {address[0]}: it is no worker")
            return None
        refused = rejection_reason(hello, place, digest, set(links))
        if refused:
            _warn(f"refused worker {hello.rank} at {address[0]}: {refused}")
            link.fail(refused, 1)
            return None
        unless_admitted.pop_all()
    link.worker = hello.rank
    return link


def _missing(place: RankInfo, links: dict[int, Link], timeout_s: float) -> str:
    missing = [str(rank) for rank in range(1, place.size) if rank not in links]
    return (
        f"{len(missing)} of {place.size} workers did not come to {place.host}:{place.port} within {timeout_s:g} s: "
        f"worker {', '.join(missing)}; look at their logs, or raise PARAM_JOIN_TIMEOUT"
    )


def _warn(text: str) -> None:
    sys.stderr.write(text + "\n")


# Every worker but the first: finds worker 0, sends it what it has computed, gets the sum.

CONNECT_S = 5.0
TRY_AGAIN_S = 0.2
BROADCAST_LIMIT = 4 * 1024**3


class Peer:
    def __init__(self, link: Link, place: RankInfo) -> None:
        self.rank = place.rank
        self.size = place.size
        self._link = link

    def sum(self, values: Doubles) -> Doubles:
        self._link.send(values.tobytes())
        content = self._link.receive(values.nbytes)
        if len(content) != values.nbytes:
            raise WorkerLost(f"worker 0 sent {len(content)} bytes, not {values.nbytes}")
        return np.frombuffer(content)

    def broadcast(self, payload: bytes) -> bytes:
        return bytes(self._link.receive(BROADCAST_LIMIT))

    def fail(self, error: TrainerError) -> None:
        self._link.fail(with_rank(self.rank, error), error.exit_code)

    def close(self) -> None:
        self._link.close()


def find_hub(place: RankInfo, digest: str, timeout_s: float) -> Peer:
    """Worker 0 may start later than this one: not finding it is no error before the time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            link = _introduce(place, digest, deadline)
        except (OSError, WorkerLost) as error:
            if time.monotonic() > deadline:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else error
                raise GroupError(
                    f"worker {place.rank} was not welcomed by worker 0 at {place.host}:{place.port} within "
                    f"{timeout_s:g} s ({reason}): look at worker 0's log, or raise PARAM_JOIN_TIMEOUT"
                ) from error
            time.sleep(TRY_AGAIN_S)
        else:
            return Peer(link, place)


def _introduce(place: RankInfo, digest: str, deadline: float) -> Link:
    connection = socket.create_connection((place.host, place.port), timeout=CONNECT_S)
    link = Link(connection, 0, max(deadline - time.monotonic(), 0.1))
    try:
        if connection.getsockname() == connection.getpeername():
            # While nobody listens on it, a port of the ephemeral range can end up connected to itself.
            raise ConnectionRefusedError("connected to itself")
        link.send(Handshake(place.rank, place.size, digest).encode())
        link.receive(0)
    except (TrainerError, OSError):
        link.close()
        raise
    link.set_silence(SILENCE_S)
    return link


# The workers of one training: they add up what each has computed.


class Group(Protocol):
    """Every worker makes the same calls in the same order; each call ends when all have made it."""

    rank: int
    size: int

    def sum(self, values: Doubles) -> Doubles:
        """The sum over all workers, added in the order of their ranks: the same bits for everybody."""

    def broadcast(self, payload: bytes) -> bytes:
        """What worker 0 passed, for everybody."""

    def fail(self, error: TrainerError) -> None:
        """Tell the others why this worker ends, so that they end too; a best effort."""

    def close(self) -> None: ...


def join(place: RankInfo, digest: str, timeout_s: float) -> Group:
    """Meet the other workers: worker 0 listens, the others come to it. digest is what all must have in common."""
    if place.size == 1:
        return Alone()
    return gather_workers(place, digest, timeout_s) if place.rank == 0 else find_hub(place, digest, timeout_s)
