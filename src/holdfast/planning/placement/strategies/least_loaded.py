"""The machine with the most free GPUs."""

from holdfast.planning.placement.dice import Dice
from holdfast.planning.placement.shelf import Shelf, Suits
from holdfast.planning.placement.strategy import Strategy


def roomiest(shelf: Shelf, gpus: int, suits: Suits, _dice: Dice) -> str | None:
    return shelf.roomiest(gpus, suits)


STRATEGY = Strategy(name="leastLoaded", pick=roomiest)
