"""Any machine with enough free GPUs, each as likely as the others."""

from holdfast.planning.placement.dice import Dice
from holdfast.planning.placement.shelf import Shelf, Suits
from holdfast.planning.placement.strategy import Strategy


def anyone(shelf: Shelf, gpus: int, suits: Suits, dice: Dice) -> str | None:
    return shelf.any_of(gpus, suits, dice)


STRATEGY = Strategy(name="random", pick=anyone)
