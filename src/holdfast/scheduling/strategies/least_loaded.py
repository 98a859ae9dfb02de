"""The node with the most free GPUs."""

from holdfast.scheduling.free_gpus import FreeGpuIndex, NodeFilter, RandomSource
from holdfast.scheduling.strategy import Strategy


def pick_most_free(index: FreeGpuIndex, gpus: int, suits: NodeFilter, _rng: RandomSource) -> str | None:
    return index.most_free_node(gpus, suits)


STRATEGY = Strategy(name="leastLoaded", pick=pick_most_free)
