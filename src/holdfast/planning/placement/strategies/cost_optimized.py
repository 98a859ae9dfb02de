"""A cheap machine while one has room, else the one with the most free GPUs."""

from holdfast.planning.ledger import NodeCapacity
from holdfast.planning.placement.strategies.least_loaded import pick_most_free
from holdfast.planning.placement.strategy import Strategy

CHEAP_LABEL = "gpu-orchestrator/cheap-node"


def is_cheap(machine: NodeCapacity) -> bool:
    return machine.labels.get(CHEAP_LABEL) == "true"


STRATEGY = Strategy(name="costOptimized", pick=pick_most_free, prefers=is_cheap)
