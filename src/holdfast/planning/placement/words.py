"""What a workload waits for, in a sentence that says what would change it."""

from collections import Counter

from msgspec import Struct

from holdfast.planning.admission.obstacles import exclusion_reason
from holdfast.planning.admission.words import PODS, by_importance, join_words, nodes, ordinal, quantity_text
from holdfast.planning.ledger import GPU, Ledger
from holdfast.planning.placement.index import NodeIndex
from holdfast.planning.placement.request import Request
from holdfast.planning.placing.amounts import NANO

# So many are told their place, and what is free or closed right now. Further back that would change with everyone who
# starts, and each change is a write for each of them.
TOLD = 10


class WaitMessage(Struct, frozen=True, kw_only=True):
    message: str
    never: bool = False
    """It would not fit if every machine were empty."""


def wait_message(request: Request, position: int, index: NodeIndex, ledger: Ledger) -> WaitMessage:
    if not ledger.machines:
        return WaitMessage(message=f"needs {_wanted(request)}; no node is there")
    if not len(index.by_capacity):
        return WaitMessage(
            message=f"no node matches nodeSelector {_selector(request)} (of {nodes(len(ledger.machines))})"
        )
    largest = index.largest(request)
    if largest < request.gpus:
        return WaitMessage(message=_request_too_large(request, largest), never=True)
    what = f"needs {_wanted(request)} on one node"
    if index.largest_entered(request) < request.gpus:
        how = _request_exclusions(request, index, ledger) if position <= TOLD else "cordoned, not ready or tainted"
        return WaitMessage(message=f"{what}; every node that is large enough is closed to it: {how}")
    if position > TOLD:
        return WaitMessage(message=f"{what}; at least {_round(position - 1)} workloads are in line before it")
    free = index.most_free(request)
    there = f"the most that a node has free is {free}" if free else "no node has any free"
    kept = f" ({nodes(len(ledger.nodes_held_for_gangs))} kept for a TrainingJob)" if ledger.nodes_held_for_gangs else ""
    return WaitMessage(message=f"{what}; {there}{kept}; {ordinal(position)} in line")


def _wanted(request: Request) -> str:
    return quantity_text(GPU, request.gpus * NANO)


def _request_too_large(request: Request, largest: int) -> str:
    asked = request.shape.requests
    everything = join_words(quantity_text(name, asked[name]) for name in by_importance(asked) if name != PODS)
    if len(asked) > 2:  # more than GPUs and the place in the list of pods
        return f"needs {everything} on one node, and no node is that large: ask for less or add a larger node"
    if not largest:
        return f"needs {everything} on one node, and no node has any: add a node with GPUs"
    return f"needs {everything} on one node, and the largest has {largest}: lower gpuCount or add a larger node"


def _selector(request: Request) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(request.shape.constraints.node_selector.items()))


def _request_exclusions(request: Request, index: NodeIndex, ledger: Ledger) -> str:
    closed = (each for each in ledger.machines.values() if index.is_large_enough(request, each.name))
    bars = Counter(exclusion_reason(request.shape, each) for each in closed)
    return ", ".join(f"{count} {which}" for which, count in sorted(bars.items()))


def _round(count: int) -> int:
    """10, 100, 1,000: what changes seldom."""
    return int(10 ** (len(str(count)) - 1))
