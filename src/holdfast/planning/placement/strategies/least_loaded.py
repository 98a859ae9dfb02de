"""The machine with the most free GPUs."""

from collections.abc import Collection

from holdfast.planning.placement.dice import Dice
from holdfast.planning.placement.shelf import Shelf
from holdfast.planning.placement.strategy import Strategy


def roomiest(shelf: Shelf, gpus: int, avoided: Collection[str], _dice: Dice) -> str | None:
    return shelf.roomiest(gpus, avoided)


STRATEGY = Strategy(name="leastLoaded", pick=roomiest)
