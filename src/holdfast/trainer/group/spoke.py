"""Every worker but the first: finds worker 0, sends it what it has computed, gets the sum."""

import socket
import time

import numpy as np

from holdfast.trainer.arrays import Doubles
from holdfast.trainer.errors import GroupError, TrainerError, WorkerLost
from holdfast.trainer.group.hello import Handshake
from holdfast.trainer.group.link import SILENCE_S, Link, with_rank
from holdfast.trainer.place import RankInfo

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
