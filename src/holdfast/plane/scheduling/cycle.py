"""One look at everything that waits: who goes where, and why the others can't."""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct, structs

from holdfast.plane.objects import Node, Pod
from holdfast.plane.scheduling.choice import Score, score
from holdfast.plane.scheduling.machine import filter_failures
from holdfast.plane.scheduling.neighbours import PodAffinityState, neighbours
from holdfast.plane.scheduling.occupancy import NodeSnapshot
from holdfast.plane.scheduling.spread import TopologySpread, topology_spreads
from holdfast.planning.placing.needs import pod_requests


class Outcome(Struct, frozen=True):
    """The pods on their machines, and those that stay, each with what is in its way."""

    placed: tuple[Pod, ...]
    refused: tuple[tuple[Pod, str], ...]


def schedule(waiting: Iterable[Pod], nodes: Mapping[str, Node], occupancy: NodeSnapshot) -> Outcome:
    """By priority, then by age, then in the order given. What is placed takes its room in `occupancy` at once."""
    placed, refused = [], []
    known: dict[bytes, str] = {}
    for pod in sorted(waiting, key=_rank):
        kind = _equivalence_class(pod, occupancy)
        obstacle = known.get(kind) if kind else None
        if obstacle is None:
            node, obstacle = _choose(pod, nodes, occupancy)
            if node is not None:
                bound = structs.replace(pod, spec=structs.replace(pod.spec, node_name=node.metadata.name))
                occupancy.assume(bound)
                placed.append(bound)
                continue
            known |= {kind: obstacle} if kind else {}
        refused.append((pod, obstacle))
    return Outcome(tuple(placed), tuple(refused))


def _rank(pod: Pod) -> tuple[int, str]:
    return -pod.spec.priority, pod.metadata.creation_timestamp


def _equivalence_class(pod: Pod, occupancy: NodeSnapshot) -> bytes:
    """Pods of one kind fare alike: when one fits nowhere, neither does the next. Empty for who depends on others."""
    spec = pod.spec
    is_social = (
        spec.topology_spread_constraints
        or spec.affinity.pod_affinity.required_during_scheduling_ignored_during_execution
        or spec.affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution
        or any(True for _ in occupancy.pods_with_anti_affinity())
    )
    return b"" if is_social else msgspec.json.encode(structs.replace(spec, priority=0))


def _choose(pod: Pod, nodes: Mapping[str, Node], occupancy: NodeSnapshot) -> tuple[Node | None, str]:
    """The best machine, or why there is none."""
    asked = pod_requests(pod.spec)
    around, spreads = neighbours(pod, occupancy, nodes), topology_spreads(pod, occupancy, nodes)
    obstacles: Counter[str] = Counter()
    fits: list[tuple[Score, Node]] = []
    for name, node in nodes.items():
        taken = occupancy.taken(name)
        found = filter_failures(pod, node, asked, taken) or _inter_pod_failures(node, around, spreads)
        if found:
            obstacles.update(found)
        else:
            fits.append((score(pod, node, asked, taken, around.preference(node)), node))
    if fits:
        return max(fits, key=lambda fit: fit[0])[1], ""
    return None, _message(len(nodes), obstacles)


def _inter_pod_failures(node: Node, around: PodAffinityState, spreads: tuple[TopologySpread, ...]) -> tuple[str, ...]:
    found = (*(each.refusal(node) for each in spreads), around.refusal(node))
    return next(((refusal,) for refusal in found if refusal), ())


def _message(nodes: int, obstacles: Counter[str]) -> str:
    if not nodes:
        return "no nodes available to schedule pods"
    reasons = ", ".join(sorted(f"{count} {obstacle}" for obstacle, count in obstacles.items()))
    return f"0/{nodes} nodes are available: {reasons}."
