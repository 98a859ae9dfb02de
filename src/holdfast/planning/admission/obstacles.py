"""Why a gang can't start, in words that say what would change it.

A message is written into a job's status, so it names only numbers that matter to the job: it must not change with every
machine that others use.
"""

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from holdfast.planning.admission.room import Room, Spots
from holdfast.planning.admission.shape import Shape
from holdfast.planning.admission.words import PODS, by_weight, figure, listed, needed, nodes, per_worker
from holdfast.planning.ledger import GPU, Machine
from holdfast.planning.placing.machines import CORDONED, barrier


class Obstacle(Struct, frozen=True):
    """What no end of another job would change."""

    message: str
    impossible: bool = False


def obstacle(spots: Spots, machines: int) -> Obstacle | None:
    """What keeps such workers from all machines, of so many; None when it is only their use."""
    if not machines:
        return Obstacle("no node is there")
    if not spots.matching:
        return Obstacle(f"no node matches {_wishes(spots.shape)} (of {nodes(machines)})")
    if not spots.suiting:
        return Obstacle(_too_large(spots), impossible=True)
    if not spots.entered:
        return Obstacle(_all_barred(spots))
    return None


def shortage(spots: Spots, workers: int, room: Room) -> str:
    """What is missing at the moment, and on how many machines it is there."""
    shape = spots.shape
    for name in by_weight(shape.asked):
        counts = {each.name: max(0, room.free(each.name).get(name, 0) // shape.asked[name]) for each in spots.entered}
        if sum(counts.values()) < workers:
            return f"{needed(shape, workers, name)}; {_there(name, shape, counts)}{_besides(spots)}"
    there = sum(1 for count in spots.counts.values() if count > 0)
    if sum(spots.counts.values()) < workers:
        everything = listed(per_worker(shape, name) for name in by_weight(shape.asked) if name != PODS)
        return f"needs {workers} × {everything}; {nodes(there)} {_have(there)} all of it free{_besides(spots)}"
    return f"{_needed_apart(shape, workers)}; {spots.capacity(spots.counts)} can be placed{_besides(spots)}"


def beyond(spots: Spots) -> str:
    """What is added for a gang that is larger than all machines together."""
    return f"; even on empty nodes only {spots.most_ever} fit: lower numWorkers or add nodes"


def _there(name: str, shape: Shape, counts: Mapping[str, int]) -> str:
    machines, workers = sum(count > 0 for count in counts.values()), sum(counts.values())
    if workers > machines:
        return f"{nodes(machines)} {_have(machines)} room for {workers}"
    if name == PODS:
        return f"{nodes(machines)} {_have(machines)} room for one more"
    return f"{nodes(machines)} {_have(machines)} {figure(name, shape.asked[name])} free"


def _have(count: int) -> str:
    return "have" if count > 1 else "has"


def _wishes(shape: Shape) -> str:
    selector = ",".join(f"{key}={value}" for key, value in sorted(shape.wishes.node_selector.items()))
    required = shape.wishes.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    parts = [f"nodeSelector {selector}"] if selector else []
    return listed([*parts, "the required node affinity"] if required is not None else parts)


def _too_large(spots: Spots) -> str:
    shape = spots.shape
    for name in by_weight(shape.asked):
        largest = max(each.offered.get(name, 0) for each in spots.matching)
        if largest < shape.asked[name]:
            has = f"the largest node has {figure(name, largest, down=True)}" if largest else "no node has any"
            return f"needs {per_worker(shape, name)} per worker; {has}: {_way_out(name, largest)}"
    everything = listed(per_worker(shape, name) for name in by_weight(shape.asked) if name != PODS)
    return f"needs {everything} per worker; no node is large enough for all of it: {_way_out('', 1)}"


def _way_out(name: str, largest: int) -> str:
    if name == GPU:
        return "lower gpusPerWorker or add a node" if largest else "add a node with GPUs, or write gpusPerWorker: 0"
    return "lower resources or add a node"


def _needed_apart(shape: Shape, workers: int) -> str:
    return f"{needed(shape, workers)}, no two in one {listed(shape.apart)} (podAntiAffinity)"


def _all_barred(spots: Spots) -> str:
    count = len(spots.suiting)
    which = "the only matching node is" if count == 1 else f"all {count} matching nodes are"
    has = "has" if count == 1 else "have"
    return f"{which} cordoned, not ready or {has} taints that the job does not tolerate: {_bars(spots)}"


def _besides(spots: Spots) -> str:
    """Machines that would count if they were not closed to the job."""
    return f"; not counted: {_bars(spots)}" if len(spots.entered) < len(spots.suiting) else ""


def _bars(spots: Spots) -> str:
    bars = Counter(bar(spots.shape, each) for each in spots.suiting if not spots.shape.may_enter(each))
    return ", ".join(f"{count} {which}" for which, count in sorted(bars.items()))


def bar(shape: Shape, machine: Machine) -> str:
    """Why such a pod may not enter the machine."""
    taint = barrier(shape.wishes.tolerations, machine.spec)
    if taint is CORDONED:
        return "cordoned"
    if not machine.ready or taint is None:
        return "not ready"
    return f"with taint {taint.key}={taint.value}" if taint.value else f"with taint {taint.key}"
