"""Among the machines that a pod may be on: which one."""

from fractions import Fraction

from holdfast.plane.objects import Node, Pod
from holdfast.planning.placing.amounts import Amounts, parse_nanos
from holdfast.planning.placing.tolerance import find_toleration

Score = tuple[int, int, Fraction, int]


def score(pod: Pod, node: Node, asked: Amounts, taken: Amounts, preference: int) -> Score:
    """Higher is better: unwelcoming marks count most, then wishes, then the share that stays free, then quiet."""
    return (
        -_untolerated_soft_taints(pod, node),
        preference + _preferred_affinity_weight(pod, node),
        _free(node, asked, taken),
        -taken.get("pods", 0),
    )


def _untolerated_soft_taints(pod: Pod, node: Node) -> int:
    soft = (taint for taint in node.spec.taints if taint.effect == "PreferNoSchedule")
    return sum(find_toleration(pod.spec.tolerations, taint) is None for taint in soft)


def _preferred_affinity_weight(pod: Pod, node: Node) -> int:
    wishes = pod.spec.affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
    labels, name = node.metadata.labels, node.metadata.name
    return sum(wish.weight for wish in wishes if wish.preference.matches(labels, name))


def _free(node: Node, asked: Amounts, taken: Amounts) -> Fraction:
    """The mean share of what the pod asks for that would stay free."""
    shares = []
    for name in asked:
        offered = parse_nanos(node.status.allocatable.get(name, 0))
        if offered:
            shares.append(Fraction(offered - taken.get(name, 0) - asked[name], offered))
    return sum(shares, Fraction(0)) / len(shares) if shares else Fraction(0)
