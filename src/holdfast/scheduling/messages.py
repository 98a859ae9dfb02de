"""Status messages of gangs and workloads that wait: what is missing, and what would change that.

A message is written into a job's status, so it names only numbers that matter to the job: the message must not change
with every node that other jobs use.
"""

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from holdfast.scheduling.candidates import CandidateNodes, FreeResource
from holdfast.scheduling.constraints import PodRequirements, Request, exclusion_reason
from holdfast.scheduling.ledger import GPU, Ledger
from holdfast.scheduling.node_index import NodeIndex
from holdfast.scheduling.resources import NANO, Amounts

# Amounts and counts in human-readable form.

PODS = "pods"
_FIRST = (GPU, "cpu", "memory", "ephemeral-storage")
_BYTES = {"memory": "memory", "ephemeral-storage": "ephemeral storage"}
_UNITS = (("Ti", 1024**4), ("Gi", 1024**3), ("Mi", 1024**2), ("Ki", 1024))


def by_importance(requests: Amounts) -> list[str]:
    """The resource names, the most familiar first; the pod slot comes last."""
    return sorted(
        requests, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name == PODS, name)
    )


def demand_text(shape: PodRequirements, workers: int, name: str = "") -> str:
    """The total request: needs 4 × 2 GPUs."""
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
    """The number alone, with at most two decimals: requests are rounded up, available amounts down."""
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
    """A reason to wait that does not go away when other jobs end."""

    message: str
    impossible: bool = False


def obstacle(candidates: CandidateNodes, node_count: int) -> PermanentObstacle | None:
    """Why no node can take such workers; None when the nodes are only in use. `node_count` counts all nodes."""
    if not node_count:
        return PermanentObstacle("no node is there")
    if not candidates.matching:
        return PermanentObstacle(f"no node matches {_constraints_text(candidates.shape)} (of {nodes(node_count)})")
    if not candidates.large_enough:
        return PermanentObstacle(_worker_too_large(candidates), impossible=True)
    if not candidates.schedulable:
        return PermanentObstacle(_all_excluded(candidates))
    return None


def shortage(candidates: CandidateNodes, workers: int) -> str:
    """The resource that is missing at the moment, and how many nodes have it free."""
    shape = candidates.shape
    for name in by_importance(shape.requests):
        free = candidates.free_resources[name]
        if free.workers < workers:
            return (
                f"{demand_text(shape, workers, name)}; {_available_text(name, shape, free)}"
                f"{_excluded_nodes_text(candidates)}"
            )
    if candidates.open.total < workers:
        node_count = len(candidates.open)
        everything = join_words(per_worker(shape, name) for name in by_importance(shape.requests) if name != PODS)
        return (
            f"needs {workers} × {everything}; {nodes(node_count)} {_have(node_count)} all of it free"
            f"{_excluded_nodes_text(candidates)}"
        )
    return (
        f"{_anti_affinity_text(shape, workers)}; {candidates.fitting} can be placed{_excluded_nodes_text(candidates)}"
    )


def exceeds_cluster_text(candidates: CandidateNodes) -> str:
    """The suffix for a gang that is larger than all nodes together."""
    return f"; even on empty nodes only {candidates.max_workers_ignoring_taints} fit: lower numWorkers or add nodes"


def _available_text(name: str, shape: PodRequirements, free: FreeResource) -> str:
    if free.workers > free.nodes:
        return f"{nodes(free.nodes)} {_have(free.nodes)} room for {free.workers}"
    if name == PODS:
        return f"{nodes(free.nodes)} {_have(free.nodes)} room for one more"
    return f"{nodes(free.nodes)} {_have(free.nodes)} {number_text(name, shape.requests[name])} free"


def _have(count: int) -> str:
    return "have" if count > 1 else "has"


def _constraints_text(shape: PodRequirements) -> str:
    selector = ",".join(f"{key}={value}" for key, value in sorted(shape.constraints.node_selector.items()))
    required = shape.constraints.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    parts = [f"nodeSelector {selector}"] if selector else []
    return join_words([*parts, "the required node affinity"] if required is not None else parts)


def _worker_too_large(candidates: CandidateNodes) -> str:
    shape = candidates.shape
    for name in by_importance(shape.requests):
        largest = candidates.largest(name)
        if largest < shape.requests[name]:
            has = f"the largest node has {number_text(name, largest, down=True)}" if largest else "no node has any"
            return f"needs {per_worker(shape, name)} per worker; {has}: {_advice(name, largest)}"
    everything = join_words(per_worker(shape, name) for name in by_importance(shape.requests) if name != PODS)
    return f"needs {everything} per worker; no node is large enough for all of it: {_advice('', 1)}"


def _advice(name: str, largest: int) -> str:
    if name == GPU:
        return "lower gpusPerWorker or add a node" if largest else "add a node with GPUs, or write gpusPerWorker: 0"
    return "lower resources or add a node"


def _anti_affinity_text(shape: PodRequirements, workers: int) -> str:
    return f"{demand_text(shape, workers)}, no two in one {join_words(shape.anti_affinity_keys)} (podAntiAffinity)"


def _all_excluded(candidates: CandidateNodes) -> str:
    count = len(candidates.large_enough)
    which = "the only matching node is" if count == 1 else f"all {count} matching nodes are"
    has = "has" if count == 1 else "have"
    return (
        f"{which} cordoned, not ready or {has} taints that the job does not tolerate: {_worker_exclusions(candidates)}"
    )


def _excluded_nodes_text(candidates: CandidateNodes) -> str:
    """Nodes that would count if the job could be scheduled to them."""
    return (
        f"; not counted: {_worker_exclusions(candidates)}"
        if len(candidates.schedulable) < len(candidates.large_enough)
        else ""
    )


def _worker_exclusions(candidates: CandidateNodes) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(candidates.exclusions.items()))


# What a workload waits for, and what would change that.

# Only the first workloads of the queue get their position and the current free GPUs in the message. Further back the
# message would change whenever a workload starts, and each change is a status write for each waiting workload.
DETAILED_POSITIONS = 10


class WaitMessage(Struct, frozen=True, kw_only=True):
    message: str
    never: bool = False
    """The workload would not fit even if every node were empty."""


def wait_message(request: Request, position: int, index: NodeIndex, ledger: Ledger) -> WaitMessage:
    if not ledger.nodes:
        return WaitMessage(message=f"needs {_gpus_text(request)}; no node is there")
    if not len(index.by_capacity):
        return WaitMessage(message=f"no node matches nodeSelector {_selector(request)} (of {nodes(len(ledger.nodes))})")
    largest = index.largest(request)
    if largest < request.gpus:
        return WaitMessage(message=_request_too_large(request, largest), never=True)
    demand = f"needs {_gpus_text(request)} on one node"
    if index.largest_schedulable(request) < request.gpus:
        reasons = (
            _request_exclusions(request, index, ledger)
            if position <= DETAILED_POSITIONS
            else "cordoned, not ready or tainted"
        )
        return WaitMessage(message=f"{demand}; every node that is large enough is closed to it: {reasons}")
    if position > DETAILED_POSITIONS:
        return WaitMessage(message=f"{demand}; at least {_round(position - 1)} workloads are in line before it")
    free = index.most_free(request)
    available = f"the most that a node has free is {free}" if free else "no node has any free"
    held = f" ({nodes(len(ledger.nodes_held_for_gangs))} kept for a TrainingJob)" if ledger.nodes_held_for_gangs else ""
    return WaitMessage(message=f"{demand}; {available}{held}; {ordinal(position)} in line")


def _gpus_text(request: Request) -> str:
    return quantity_text(GPU, request.gpus * NANO)


def _request_too_large(request: Request, largest: int) -> str:
    requests = request.shape.requests
    everything = join_words(quantity_text(name, requests[name]) for name in by_importance(requests) if name != PODS)
    if len(requests) > 2:  # more than GPUs and the pod slot
        return f"needs {everything} on one node, and no node is that large: ask for less or add a larger node"
    if not largest:
        return f"needs {everything} on one node, and no node has any: add a node with GPUs"
    return f"needs {everything} on one node, and the largest has {largest}: lower gpuCount or add a larger node"


def _selector(request: Request) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(request.shape.constraints.node_selector.items()))


def _request_exclusions(request: Request, index: NodeIndex, ledger: Ledger) -> str:
    excluded = (node for node in ledger.nodes.values() if index.is_large_enough(request, node.name))
    reasons = Counter(exclusion_reason(request.shape, node) for node in excluded)
    return ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))


def _round(count: int) -> int:
    """Rounded down to 10, 100, 1,000, so that the message seldom changes."""
    return int(10 ** (len(str(count)) - 1))


# How often the message of a waiting workload may change: each change is a status write, and a long queue must not write
# all the time.

MESSAGE_INTERVAL_S = 60.0


class _ReportedMessage(Struct, frozen=True):
    wait: WaitMessage
    at_s: float


class MessageThrottle:
    def __init__(self) -> None:
        self._reported: dict[str, _ReportedMessage] = {}

    def throttle(self, uid: str, wait: WaitMessage, now_s: float) -> tuple[WaitMessage, float]:
        """The message to report, and in how many seconds to ask again.

        The first message is reported at once, a new one when the last one is a minute old.
        """
        reported = self._reported.get(uid)
        if (
            reported is not None
            and wait.message != reported.wait.message
            and now_s < reported.at_s + MESSAGE_INTERVAL_S
        ):
            return reported.wait, reported.at_s + MESSAGE_INTERVAL_S - now_s
        if reported is None or wait.message != reported.wait.message:
            self._reported[uid] = _ReportedMessage(wait, now_s)
        return wait, MESSAGE_INTERVAL_S

    def forget(self, uid: str) -> None:
        self._reported.pop(uid, None)
