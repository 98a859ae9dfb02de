"""The all-reduce of the workers: worker 0 adds up what all workers have computed, and sends them the sum."""

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


class SingleWorker:
    """A group of one worker."""

    rank = 0
    size = 1

    def sum(self, values: Doubles) -> Doubles:
        return values

    def broadcast(self, payload: bytes) -> bytes:
        return payload

    def fail(self, error: TrainerError) -> None:
        """There are no other workers to notify."""

    def close(self) -> None:
        """There is nothing to close."""


# Worker 0: listens until all other workers have connected, then adds up what they send.

# The timeout for a handshake: the other workers queue behind a client that connects and sends nothing.
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
        """One message from each worker, in the order of arrival: a lost worker is noticed while another computes."""
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


def gather_workers(rank_info: RankInfo, digest: str, timeout_s: float) -> RankZero:
    deadline = time.monotonic() + timeout_s
    links: dict[int, Link] = {}
    try:
        with _listen(rank_info, deadline) as listener:
            while len(links) < rank_info.size - 1:
                if not _admit_next(listener, rank_info, digest, links, deadline):
                    raise GroupError(_missing(rank_info, links, timeout_s))
        hub = RankZero(links)
        hub.broadcast(b"")  # the welcome: all workers are connected
    except TrainerError as error:
        for link in links.values():
            link.fail(with_rank(0, error), error.exit_code)
            link.close()
        raise
    return hub


def _admit_next(
    listener: socket.socket, rank_info: RankInfo, digest: str, links: dict[int, Link], deadline: float
) -> bool:
    """Wait for the next worker, and detect connected workers that leave; false at the deadline."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        for link in links.values():
            selector.register(link, selectors.EVENT_READ, link)
        ready = selector.select(max(deadline - time.monotonic(), 0))
    for key, _ in ready:
        if key.data is not None:
            key.data.receive(0)  # no worker sends before the welcome: this raises why the worker left
        elif (admitted := _admit(listener, rank_info, digest, links)) is not None:
            links[admitted.worker] = admitted
    return bool(ready)


def _listen(rank_info: RankInfo, deadline: float) -> socket.socket:
    """Listen on the address that the other workers use: several trainings on one node may share the port number."""
    family, address = _resolve(rank_info, deadline)
    try:
        listener = socket.create_server(address, family=family, backlog=rank_info.size)
    except OSError as error:
        endpoint = f"{rank_info.host}:{rank_info.port} ({address[0]})"
        reason = os.strerror(error.errno) if error.errno else error  # strerror would repeat the address
        raise GroupError(f"worker 0 can't listen on {endpoint}: {reason}") from error
    listener.settimeout(HELLO_S)  # a client that connects and leaves must not block accept
    return listener


def _resolve(rank_info: RankInfo, deadline: float) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Retries, since DNS may take a moment to resolve a new pod's name."""
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(rank_info.host, rank_info.port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            if time.monotonic() > deadline:
                raise GroupError(f"worker 0 can't resolve its own name {rank_info.host}: {error.strerror}") from error
            time.sleep(RESOLVE_AGAIN_S)
        else:
            return family, (str(address[0]), rank_info.port)


def _admit(listener: socket.socket, rank_info: RankInfo, digest: str, links: dict[int, Link]) -> Link | None:
    try:
        connection, address = listener.accept()
    except OSError:  # the client has left already
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
        rejection = rejection_reason(hello, rank_info, digest, set(links))
        if rejection:
            _warn(f"refused worker {hello.rank} at {address[0]}: {rejection}")
            link.fail(rejection, 1)
            return None
        unless_admitted.pop_all()
    link.worker = hello.rank
    return link


def _missing(rank_info: RankInfo, links: dict[int, Link], timeout_s: float) -> str:
    missing = [str(rank) for rank in range(1, rank_info.size) if rank not in links]
    return (
        f"{len(missing)} of {rank_info.size} workers did not come to {rank_info.host}:{rank_info.port} within "
        f"{timeout_s:g} s: worker {', '.join(missing)}; look at their logs, or raise PARAM_JOIN_TIMEOUT"
    )


def _warn(text: str) -> None:
    sys.stderr.write(text + "\n")


# Every other worker: connects to worker 0, sends what it has computed, and receives the sum.

CONNECT_S = 5.0
TRY_AGAIN_S = 0.2
BROADCAST_LIMIT = 4 * 1024**3


class Peer:
    def __init__(self, link: Link, rank_info: RankInfo) -> None:
        self.rank = rank_info.rank
        self.size = rank_info.size
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


def connect_to_rank_zero(rank_info: RankInfo, digest: str, timeout_s: float) -> Peer:
    """Worker 0 may start later than this worker: a failed connection is no error before the deadline."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            link = _connect(rank_info, digest, deadline)
        except (OSError, WorkerLost) as error:
            if time.monotonic() > deadline:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else error
                raise GroupError(
                    f"worker {rank_info.rank} was not welcomed by worker 0 at {rank_info.host}:{rank_info.port} within "
                    f"{timeout_s:g} s ({reason}): look at worker 0's log, or raise PARAM_JOIN_TIMEOUT"
                ) from error
            time.sleep(TRY_AGAIN_S)
        else:
            return Peer(link, rank_info)


def _connect(rank_info: RankInfo, digest: str, deadline: float) -> Link:
    connection = socket.create_connection((rank_info.host, rank_info.port), timeout=CONNECT_S)
    link = Link(connection, 0, max(deadline - time.monotonic(), 0.1))
    try:
        if connection.getsockname() == connection.getpeername():
            # While no server listens on a port of the ephemeral range, a connection can end up connected to itself.
            raise ConnectionRefusedError("connected to itself")
        link.send(Handshake(rank_info.rank, rank_info.size, digest).encode())
        link.receive(0)
    except (TrainerError, OSError):
        link.close()
        raise
    link.set_silence(SILENCE_S)
    return link


# The interface of a group, and how a worker joins it.


class Group(Protocol):
    """Every worker makes the same calls in the same order; each call returns when all workers have made it."""

    rank: int
    size: int

    def sum(self, values: Doubles) -> Doubles:
        """The sum over all workers, added in the order of their ranks: every worker gets the same bits."""

    def broadcast(self, payload: bytes) -> bytes:
        """The payload of worker 0, on every worker."""

    def fail(self, error: TrainerError) -> None:
        """Send the other workers the reason why this worker exits, so that they exit too; best effort."""

    def close(self) -> None: ...


def join(rank_info: RankInfo, digest: str, timeout_s: float) -> Group:
    """Connect the workers: worker 0 listens, the others connect to it. All workers must have the same digest."""
    if rank_info.size == 1:
        return SingleWorker()
    return (
        gather_workers(rank_info, digest, timeout_s)
        if rank_info.rank == 0
        else connect_to_rank_zero(rank_info, digest, timeout_s)
    )
