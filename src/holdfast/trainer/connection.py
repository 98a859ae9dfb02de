"""A connection to another worker. Its close, timeout and failure message become errors that name the worker."""

import contextlib
import json
import socket
import struct
from dataclasses import asdict, dataclass

from holdfast.trainer.settings import RankInfo, TrainerError, WorkerFailed, WorkerLost

HEADER = struct.Struct("!cQ")
DATA, FAILURE = b"D", b"F"
FAILURE_LIMIT = 64 * 1024
# A step takes well under a second; a worker that sends nothing for this time is stuck.
SILENCE_S = 300.0
GOODBYE_S = 2.0
# A node that vanishes closes no connection: keepalive probes detect that in 10 + 10 * 5 seconds. The operator can
# distinguish a lost node from a failed training, so it gets the time to react first.
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 10}


class Link:
    def __init__(self, connection: socket.socket, worker: int, silence_s: float = SILENCE_S) -> None:
        self.worker = worker
        self._connection = connection
        self.set_silence(silence_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):  # macOS has another name for the first option
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def fileno(self) -> int:
        return self._connection.fileno()

    def set_silence(self, seconds: float) -> None:
        self._silence_s = seconds
        self._connection.settimeout(seconds)

    def send(self, payload: bytes) -> None:
        try:
            self._connection.sendall(HEADER.pack(DATA, len(payload)))
            self._connection.sendall(payload)
        except ConnectionError as error:
            raise self._peer_failure() or self._lost(error) from error
        except OSError as error:
            raise self._lost(error) from error

    def receive(self, limit: int) -> bytearray:
        """The next message, of at most limit bytes."""
        kind, length = HEADER.unpack(self._receive_exactly(HEADER.size))
        if kind == FAILURE and length <= FAILURE_LIMIT:
            raise _decode_failure(self._receive_exactly(length))
        if kind != DATA or length > limit:
            raise WorkerLost(f"worker {self.worker} does not speak as a worker of this training does")
        return self._receive_exactly(length)

    def fail(self, message: str, exit_code: int) -> None:
        payload = json.dumps({"message": message[:1000], "exitCode": exit_code}).encode()
        with contextlib.suppress(OSError):
            self._connection.settimeout(GOODBYE_S)
            self._connection.sendall(HEADER.pack(FAILURE, len(payload)) + payload)

    def close(self) -> None:
        self._connection.close()

    def _peer_failure(self) -> WorkerFailed | None:
        """The failure message of the other worker, if it has sent one: it may still be in the receive buffer."""
        try:
            self.receive(0)
        except WorkerFailed as failure:
            return failure
        except WorkerLost:
            return None
        return None

    def _receive_exactly(self, length: int) -> bytearray:
        content = bytearray(length)
        view = memoryview(content)
        while view:
            try:
                count = self._connection.recv_into(view)
            except OSError as error:
                raise self._lost(error) from error
            if not count:
                raise WorkerLost(f"lost worker {self.worker}: it closed the connection")
            view = view[count:]
        return content

    def _lost(self, error: OSError) -> WorkerLost:
        if isinstance(error, TimeoutError) and error.errno is None:
            return WorkerLost(f"lost worker {self.worker}: nothing came for {self._silence_s:g} s")
        return WorkerLost(f"lost worker {self.worker}: {error.strerror or error}")


def with_rank(rank: int, error: TrainerError) -> str:
    """The error message for the other workers: with the rank of the worker that failed, named once."""
    return str(error) if isinstance(error, WorkerFailed) else f"worker {rank}: {error}"


def _decode_failure(payload: bytearray) -> WorkerFailed:
    try:
        content = json.loads(payload)
        return WorkerFailed(str(content["message"]), int(content["exitCode"]))
    except (ValueError, KeyError, TypeError):
        return WorkerFailed("another worker failed, for a reason that could not be read", 1)


# The handshake: a worker introduces itself, and worker 0 accepts or rejects it.

LIMIT = 1024


@dataclass(frozen=True, slots=True)
class Handshake:
    rank: int
    size: int
    digest: str

    def encode(self) -> bytes:
        return json.dumps({"holdfast": 1, **asdict(self)}).encode()


def decode(content: bytearray) -> Handshake | None:
    """None if the content is no handshake of a worker."""
    try:
        fields = json.loads(content)
        return (
            Handshake(int(fields["rank"]), int(fields["size"]), str(fields["digest"]))
            if fields["holdfast"] == 1
            else None
        )
    except (ValueError, KeyError, TypeError):
        return None


def rejection_reason(hello: Handshake, rank_info: RankInfo, digest: str, present: set[int]) -> str:
    """Why worker 0 rejects this worker; empty when it does not."""
    if hello.size != rank_info.size or not 0 < hello.rank < rank_info.size:
        return f"this training has {rank_info.size} workers: there is no place for worker {hello.rank} of {hello.size}"
    if hello.digest != digest:
        return "this worker's settings or attempt are not those of worker 0: give all workers the same"
    if hello.rank in present:
        return f"there is a worker {hello.rank} already: give every worker its own rank"
    return ""
