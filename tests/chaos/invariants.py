"""What must hold at every moment of a history, whatever happened.

A pod counts as running from its binding until it ends or is deleted: what its containers do in between is not known.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from holdfast.api.core.objects import Node, Pod
from holdfast.api.meta import Key
from holdfast.scheduling.resources import NANO, pod_requests
from tests.control_plane.changes import Change

GPU = "nvidia.com/gpu"


class _Moment:
    """The nodes that can be reached and the pods that run, after one change."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.running: dict[Key, Pod] = {}
        # Stopped while their node was away: they are not waited for, and count no more should it come back.
        self.cut_off: set[str] = set()

    def take(self, change: Change[Any]) -> set[str]:
        """Returns the nodes on which something is different."""
        obj = change.obj
        if isinstance(obj, Node):
            self.nodes.pop(obj.metadata.name, None)
            if obj.is_ready and not change.gone:
                self.nodes[obj.metadata.name] = obj
            self._cut_off(pod for pod in self.running.values() if pod.spec.node_name == obj.metadata.name)
            return {obj.metadata.name}
        if not isinstance(obj, Pod) or not obj.spec.node_name:
            return set()
        self.running.pop(obj.metadata.key, None)
        if not change.gone and not obj.is_finished:
            self.running[obj.metadata.key] = obj
            self._cut_off([obj])
        return {obj.spec.node_name}

    def reachable(self) -> Iterator[Pod]:
        for pod in self.running.values():
            if pod.spec.node_name in self.nodes and pod.metadata.uid not in self.cut_off:
                yield pod

    def _cut_off(self, pods: Iterable[Pod]) -> None:
        stopped = (pod for pod in pods if pod.is_terminating and pod.spec.node_name not in self.nodes)
        self.cut_off.update(pod.metadata.uid for pod in stopped)


def moments(changes: Iterable[Change[Any]]) -> Iterator[tuple[int, _Moment, set[str]]]:
    moment = _Moment()
    for change in sorted(changes, key=lambda each: each.version):
        touched = moment.take(change)
        if touched:
            yield change.version, moment, touched


def overlaps(changes: Iterable[Change[Any]]) -> list[str]:
    """Moments at which workers of two attempts of one job ran at once on nodes that could be reached."""
    found = []
    for version, moment, _ in moments(changes):
        attempts: defaultdict[str, set[str]] = defaultdict(set)
        for pod in moment.reachable():
            labels = pod.metadata.labels
            attempts[f"{pod.metadata.namespace}/{labels['training-job']}"].add(labels["holdfast.dev/attempt"])
        found += [f"{version}: {job} {sorted(seen)}" for job, seen in attempts.items() if len(seen) > 1]
    return found


def overbooked(changes: Iterable[Change[Any]]) -> list[str]:
    """Moments at which a node had more GPUs given away than it has."""
    found = []
    for version, moment, touched in moments(changes):
        for name in touched & moment.nodes.keys():
            pods = (pod for pod in moment.running.values() if pod.spec.node_name == name)
            taken = sum(pod_requests(pod.spec).get(GPU, 0) for pod in pods) // NANO
            if taken > int(moment.nodes[name].status.allocatable.get(GPU, 0)):
                found.append(f"{version}: {name} gave away {taken}")
    return found


def busiest(changes: Iterable[Change[Any]]) -> int:
    """The most pods that ran at once."""
    return max((len(moment.running) for _, moment, _ in moments(changes)), default=0)


def orphans(objects: Iterable[Mapping[str, Any]], owners: Collection[str]) -> list[str]:
    """Objects that belong to none of these TrainingJobs, nor to an object of theirs."""
    objects, known = list(objects), set(owners)
    known.update(each["metadata"]["uid"] for each in objects if each["kind"] == "Job" and _has_owner(each, known))
    return [f"{each['kind']} {each['metadata']['name']}" for each in objects if not _has_owner(each, known)]


def _has_owner(obj: Mapping[str, Any], owners: Collection[str]) -> bool:
    return any(owner["uid"] in owners for owner in obj["metadata"].get("ownerReferences", ()))
