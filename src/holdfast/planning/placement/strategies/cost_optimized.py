"""A cheap machine while one has room, else the one with the most free GPUs."""

from holdfast.planning.ledger import Machine
from holdfast.planning.placement.strategies.least_loaded import roomiest
from holdfast.planning.placement.strategy import Strategy

CHEAP_LABEL = "gpu-orchestrator/cheap-node"


def is_cheap(machine: Machine) -> bool:
    return machine.labels.get(CHEAP_LABEL) == "true"


STRATEGY = Strategy(name="costOptimized", pick=roomiest, prefers=is_cheap)
