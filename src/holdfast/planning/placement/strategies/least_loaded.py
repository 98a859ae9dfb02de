"""The machine with the most free GPUs."""

from holdfast.planning.placement.dice import RandomSource
from holdfast.planning.placement.shelf import FreeGpuIndex, NodeFilter
from holdfast.planning.placement.strategy import Strategy


def pick_most_free(shelf: FreeGpuIndex, gpus: int, suits: NodeFilter, _dice: RandomSource) -> str | None:
    return shelf.most_free_node(gpus, suits)


STRATEGY = Strategy(name="leastLoaded", pick=pick_most_free)
