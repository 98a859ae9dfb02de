"""A group of one."""

from holdfast.trainer.arrays import Doubles
from holdfast.trainer.errors import TrainerError


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
