"""A cheap node while one has capacity, else the node with the most free GPUs."""

from holdfast.scheduling.ledger import NodeCapacity
from holdfast.scheduling.strategies.least_loaded import pick_most_free
from holdfast.scheduling.strategy import Strategy

CHEAP_LABEL = "gpu-orchestrator/cheap-node"


def is_cheap(node: NodeCapacity) -> bool:
    return node.labels.get(CHEAP_LABEL) == "true"


STRATEGY = Strategy(name="costOptimized", pick=pick_most_free, prefers=is_cheap)
