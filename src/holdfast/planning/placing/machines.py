"""Whether a pod and a machine suit each other, before it is asked how much room there is."""

from collections.abc import Iterable, Mapping

from holdfast.api.placing import NodeSpec, PodSpec, Taint, Toleration
from holdfast.planning.placing.tolerance import find_toleration

CORDONED = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def matches_node(pod: PodSpec, labels: Mapping[str, str], name: str) -> bool:
    """Whether the machine with these labels is one that the pod asks for."""
    required = pod.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    selected = all(labels.get(key) == value for key, value in pod.node_selector.items())
    return selected and (required is None or required.matches(labels, name))


def untolerated_taint(tolerations: Iterable[Toleration], machine: NodeSpec) -> Taint | None:
    """The first mark on the machine that keeps the pod away; `CORDONED` itself where people closed the machine."""
    marks = (CORDONED, *machine.taints) if machine.unschedulable else machine.taints
    for taint in marks:
        if taint.effect in ("NoSchedule", "NoExecute") and find_toleration(tolerations, taint) is None:
            return taint
    return None
