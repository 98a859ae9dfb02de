"""Why a gang can't start, in words that say what would change it.

A message is written into a job's status, so it names only numbers that matter to the job: it must not change with every
machine that others use.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from holdfast.scheduling.candidates import CandidateNodes, PassCapacity
from holdfast.scheduling.constraints import CORDONED, PodRequirements, untolerated_taint
from holdfast.scheduling.ledger import GPU, Ledger, NodeCapacity
from holdfast.scheduling.node_index import NodeIndex
from holdfast.scheduling.request import Request
from holdfast.scheduling.resources import NANO, Amounts

# Amounts and counts as people read them.

PODS = "pods"
_FIRST = (GPU, "cpu", "memory", "ephemeral-storage")
_BYTES = {"memory": "memory", "ephemeral-storage": "ephemeral storage"}
_UNITS = (("Ti", 1024**4), ("Gi", 1024**3), ("Mi", 1024**2), ("Ki", 1024))


def by_importance(asked: Amounts) -> list[str]:
    """The resources, those first that people think of first; a place in the list of pods is the last."""
    return sorted(asked, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name == PODS, name))


def demand_text(shape: PodRequirements, workers: int, name: str = "") -> str:
    """What is asked for in all: needs 4 × 2 GPUs."""
    name = name or by_importance(shape.requests)[0]
    if name == PODS:
        return f"needs room for {quantity_text(PODS, workers * NANO)}"
    each = per_worker(shape, name)
    return f"needs {workers} × ({each})" if " + " in each else f"needs {workers} × {each}"


def per_worker(shape: PodRequirements, name: str) -> str:
    """The request of one worker: 2 GPUs; 1 CPU + 0.05 for the sidecar."""
    sidecar = shape.sidecar.get(name, 0)
    own = shape.requests[name] - sidecar
    if not sidecar:
        return quantity_text(name, own)
    total = f"{quantity_text(name, own)} + {number_text(name, sidecar)}" if own else quantity_text(name, sidecar)
    return f"{total} for the sidecar"


def quantity_text(name: str, nanos: int) -> str:
    """2 GPUs, 1 CPU, 32Gi of memory, 1 rdma/hca_shared_devices_a."""
    number = number_text(name, nanos)
    if name in _BYTES:
        return f"{number} of {_BYTES[name]}"
    one = {GPU: "GPU", "cpu": "CPU", PODS: "pod"}.get(name)
    return f"{number} {name}" if one is None else f"{number} {one}" if nanos == NANO else f"{number} {one}s"


def number_text(name: str, nanos: int, *, down: bool = False) -> str:
    """The number alone, with at most two decimals: rounded up, or down for what is there to be had."""
    unit, size = "", 1
    if name in _BYTES:
        unit, size = next((each for each in _UNITS if nanos >= each[1] * NANO), ("", 1))
    hundredth = size * NANO // 100
    hundredths = nanos // hundredth if down else -(-nanos // hundredth)
    return f"{hundredths / 100:.2f}".rstrip("0").rstrip(".") + unit


def nodes(count: int) -> str:
    return "no node" if count == 0 else "1 node" if count == 1 else f"{count} nodes"


def ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def join_words(items: Iterable[str]) -> str:
    """a, b and c."""
    *others, last = items
    return f"{', '.join(others)} and {last}" if others else last


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


# What a workload waits for, in a sentence that says what would change it.

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


# How often a workload is told what it waits for: each time is a write, and a long line must not write for ever.

CALM_S = 60.0


class _Told(Struct, frozen=True):
    wait: WaitMessage
    at_s: float


class MessageThrottle:
    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def throttle(self, uid: str, wait: WaitMessage, now_s: float) -> tuple[WaitMessage, float]:
        """What it is to hear: the first words at once, others when the last ones are a minute old; and when to ask."""
        told = self._told.get(uid)
        if told is not None and wait.message != told.wait.message and now_s < told.at_s + CALM_S:
            return told.wait, told.at_s + CALM_S - now_s
        if told is None or wait.message != told.wait.message:
            self._told[uid] = _Told(wait, now_s)
        return wait, CALM_S

    def forget(self, uid: str) -> None:
        self._told.pop(uid, None)
