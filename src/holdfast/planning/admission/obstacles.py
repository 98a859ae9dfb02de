"""Why a gang can't start, in words that say what would change it.

A message is written into a job's status, so it names only numbers that matter to the job: it must not change with every
machine that others use.
"""

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from holdfast.planning.admission.room import CandidateNodes, PassCapacity
from holdfast.planning.admission.shape import PodRequirements
from holdfast.planning.admission.words import (
    PODS,
    by_importance,
    demand_text,
    join_words,
    nodes,
    number_text,
    per_worker,
)
from holdfast.planning.ledger import GPU, NodeCapacity
from holdfast.planning.placing.machines import CORDONED, untolerated_taint


class PermanentObstacle(Struct, frozen=True):
    """What no end of another job would change."""

    message: str
    impossible: bool = False


def obstacle(spots: CandidateNodes, machines: int) -> PermanentObstacle | None:
    """What keeps such workers from all machines, of so many; None when it is only their use."""
    if not machines:
        return PermanentObstacle("no node is there")
    if not spots.matching:
        return PermanentObstacle(f"no node matches {_wishes(spots.shape)} (of {nodes(machines)})")
    if not spots.suiting:
        return PermanentObstacle(_worker_too_large(spots), impossible=True)
    if not spots.entered:
        return PermanentObstacle(_all_barred(spots))
    return None


def shortage(spots: CandidateNodes, workers: int, room: PassCapacity) -> str:
    """What is missing at the moment, and on how many machines it is there."""
    shape = spots.shape
    for name in by_importance(shape.requests):
        counts = {
            each.name: max(0, room.free(each.name).get(name, 0) // shape.requests[name]) for each in spots.entered
        }
        if sum(counts.values()) < workers:
            return f"{demand_text(shape, workers, name)}; {_there(name, shape, counts)}{_excluded_nodes_text(spots)}"
    there = sum(1 for count in spots.counts.values() if count > 0)
    if sum(spots.counts.values()) < workers:
        everything = join_words(per_worker(shape, name) for name in by_importance(shape.requests) if name != PODS)
        return (
            f"needs {workers} × {everything}; {nodes(there)} {_have(there)} all of it free{_excluded_nodes_text(spots)}"
        )
    return f"{_needed_apart(shape, workers)}; {spots.capacity(spots.counts)} can be placed{_excluded_nodes_text(spots)}"


def beyond(spots: CandidateNodes) -> str:
    """What is added for a gang that is larger than all machines together."""
    return f"; even on empty nodes only {spots.max_workers_ignoring_taints} fit: lower numWorkers or add nodes"


def _there(name: str, shape: PodRequirements, counts: Mapping[str, int]) -> str:
    machines, workers = sum(count > 0 for count in counts.values()), sum(counts.values())
    if workers > machines:
        return f"{nodes(machines)} {_have(machines)} room for {workers}"
    if name == PODS:
        return f"{nodes(machines)} {_have(machines)} room for one more"
    return f"{nodes(machines)} {_have(machines)} {number_text(name, shape.requests[name])} free"


def _have(count: int) -> str:
    return "have" if count > 1 else "has"


def _wishes(shape: PodRequirements) -> str:
    selector = ",".join(f"{key}={value}" for key, value in sorted(shape.constraints.node_selector.items()))
    required = shape.constraints.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    parts = [f"nodeSelector {selector}"] if selector else []
    return join_words([*parts, "the required node affinity"] if required is not None else parts)


def _worker_too_large(spots: CandidateNodes) -> str:
    shape = spots.shape
    for name in by_importance(shape.requests):
        largest = max(each.offered.get(name, 0) for each in spots.matching)
        if largest < shape.requests[name]:
            has = f"the largest node has {number_text(name, largest, down=True)}" if largest else "no node has any"
            return f"needs {per_worker(shape, name)} per worker; {has}: {_advice(name, largest)}"
    everything = join_words(per_worker(shape, name) for name in by_importance(shape.requests) if name != PODS)
    return f"needs {everything} per worker; no node is large enough for all of it: {_advice('', 1)}"


def _advice(name: str, largest: int) -> str:
    if name == GPU:
        return "lower gpusPerWorker or add a node" if largest else "add a node with GPUs, or write gpusPerWorker: 0"
    return "lower resources or add a node"


def _needed_apart(shape: PodRequirements, workers: int) -> str:
    return f"{demand_text(shape, workers)}, no two in one {join_words(shape.anti_affinity_keys)} (podAntiAffinity)"


def _all_barred(spots: CandidateNodes) -> str:
    count = len(spots.suiting)
    which = "the only matching node is" if count == 1 else f"all {count} matching nodes are"
    has = "has" if count == 1 else "have"
    return f"{which} cordoned, not ready or {has} taints that the job does not tolerate: {_worker_exclusions(spots)}"


def _excluded_nodes_text(spots: CandidateNodes) -> str:
    """Machines that would count if they were not closed to the job."""
    return f"; not counted: {_worker_exclusions(spots)}" if len(spots.entered) < len(spots.suiting) else ""


def _worker_exclusions(spots: CandidateNodes) -> str:
    bars = Counter(exclusion_reason(spots.shape, each) for each in spots.suiting if not spots.shape.can_run_on(each))
    return ", ".join(f"{count} {which}" for which, count in sorted(bars.items()))


def exclusion_reason(shape: PodRequirements, machine: NodeCapacity) -> str:
    """Why such a pod may not enter the machine."""
    taint = untolerated_taint(shape.constraints.tolerations, machine.spec)
    if taint is CORDONED:
        return "cordoned"
    if not machine.ready or taint is None:
        return "not ready"
    return f"with taint {taint.key}={taint.value}" if taint.value else f"with taint {taint.key}"
