"""A random node with enough free GPUs, uniformly chosen."""

from holdfast.scheduling.free_gpus import FreeGpuIndex, NodeFilter, RandomSource
from holdfast.scheduling.strategy import Strategy


def pick_random(index: FreeGpuIndex, gpus: int, suits: NodeFilter, rng: RandomSource) -> str | None:
    return index.random_node(gpus, suits, rng)


STRATEGY = Strategy(name="random", pick=pick_random)
