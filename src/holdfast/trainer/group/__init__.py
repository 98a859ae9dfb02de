"""The workers of one training: they add up what each has computed."""

from typing import Protocol

from holdfast.trainer.arrays import Doubles
from holdfast.trainer.errors import TrainerError
from holdfast.trainer.group.alone import Alone
from holdfast.trainer.group.hub import gather_workers
from holdfast.trainer.group.spoke import find_hub
from holdfast.trainer.place import RankInfo


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
