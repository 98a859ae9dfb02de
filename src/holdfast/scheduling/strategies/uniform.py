"""Any machine with enough free GPUs, each as likely as the others."""

from holdfast.scheduling.free_gpus import FreeGpuIndex, NodeFilter, RandomSource
from holdfast.scheduling.strategy import Strategy


def pick_random(shelf: FreeGpuIndex, gpus: int, suits: NodeFilter, dice: RandomSource) -> str | None:
    return shelf.random_node(gpus, suits, dice)


STRATEGY = Strategy(name="random", pick=pick_random)
