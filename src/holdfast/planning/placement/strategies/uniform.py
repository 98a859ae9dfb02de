"""Any machine with enough free GPUs, each as likely as the others."""

from holdfast.planning.placement.dice import RandomSource
from holdfast.planning.placement.shelf import FreeGpuIndex, NodeFilter
from holdfast.planning.placement.strategy import Strategy


def pick_random(shelf: FreeGpuIndex, gpus: int, suits: NodeFilter, dice: RandomSource) -> str | None:
    return shelf.random_node(gpus, suits, dice)


STRATEGY = Strategy(name="random", pick=pick_random)
