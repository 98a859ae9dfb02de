"""Where chance comes from: an argument, so that the same dice make the same choices."""

from typing import Protocol


class RandomSource(Protocol):
    """random.Random is one."""

    def randrange(self, stop: int, /) -> int: ...
