"""Any machine with enough free GPUs, each as likely as the others."""

from collections.abc import Collection

from holdfast.planning.placement.dice import Dice
from holdfast.planning.placement.shelf import Shelf
from holdfast.planning.placement.strategy import Strategy


def anyone(shelf: Shelf, gpus: int, avoided: Collection[str], dice: Dice) -> str | None:
    return shelf.any_of(gpus, dice, avoided)


STRATEGY = Strategy(name="random", pick=anyone)
