"""Who is on which machine, and what is taken there: kept up with every change instead of counted anew.

A pod that was just given its machine is there at once, before the cache shows it; otherwise two pods could be given
the same room.
"""

from collections.abc import Callable, Iterable

from holdfast.api.meta import Key
from holdfast.local.controllers.objects import CLAIMS, NODES, PODS, Claim, Node, Pod
from holdfast.runtime.informer import Informers
from holdfast.scheduling.resources import Amounts, minus, plus, pod_requests

SCHEDULER_NAME = "default-scheduler"


class NodeSnapshot:
    """A source of news for the scheduler: `dirty` says whether something changed that may give a pod its place."""

    def __init__(self) -> None:
        self.dirty = True
        self._pods: dict[str, dict[str, Pod]] = {}
        self._taken: dict[str, Amounts] = {}
        self._assumed: dict[str, Pod] = {}
        self._repelling: dict[str, Pod] = {}
        self._waiting: dict[str, Pod] = {}

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        def node_changed(old: Node | None, new: Node | None) -> None:
            if _offer(old) != _offer(new):
                self.dirty = True
                add(Key("", ""))

        def claim_changed(_old: Claim | None, _new: Claim | None) -> None:
            self.dirty = True
            add(Key("", ""))

        informers.of(PODS).handlers.append(self.pod_changed)
        informers.of(NODES).handlers.append(node_changed)
        informers.of(CLAIMS).handlers.append(claim_changed)

    def waiting(self) -> list[Pod]:
        """Those to find a machine for, in the order in which they came."""
        return [pod for uid, pod in self._waiting.items() if uid not in self._assumed]

    def on(self, node: str) -> Iterable[Pod]:
        return self._pods.get(node, {}).values()

    def taken(self, node: str) -> Amounts:
        return self._taken.get(node, {})

    def all_pods(self) -> Iterable[Pod]:
        return (pod for pods in self._pods.values() for pod in pods.values())

    def pods_with_anti_affinity(self) -> Iterable[Pod]:
        """Pods on machines that want some others to keep away."""
        return self._repelling.values()

    def assume(self, bound: Pod) -> None:
        """`bound` is the pod as it will be once the cluster has it on its machine."""
        self._assumed[bound.metadata.uid] = bound
        self._enter(bound)

    def forget(self, bound: Pod) -> None:
        """It did not come to that."""
        self._settle(bound)
        self.dirty = True

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self._queue(old, new)
        if _is_like(old, new):
            return
        for pod in (old, new):
            # What was assumed is over when the cache shows a machine, or that the pod is gone.
            if pod is not None and (new is None or pod.metadata.uid != new.metadata.uid or not waits(new)):
                self._settle(pod)
        if old is not None and _is_placed(old):
            self._leave(old)
        if new is not None and _is_placed(new):
            self._enter(new)
        self.dirty = True

    def _queue(self, old: Pod | None, new: Pod | None) -> None:
        """A pod keeps its place in the queue while it changes."""
        if new is not None and waits(new):
            self._waiting[new.metadata.uid] = new
        elif new is not None:
            self._waiting.pop(new.metadata.uid, None)
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._waiting.pop(old.metadata.uid, None)

    def _settle(self, pod: Pod) -> None:
        assumed = self._assumed.pop(pod.metadata.uid, None)
        if assumed is not None:
            self._leave(assumed)

    def _enter(self, pod: Pod) -> None:
        node, uid = pod.spec.node_name, pod.metadata.uid
        self._pods.setdefault(node, {})[uid] = pod
        self._taken[node] = plus(self._taken.get(node, {}), pod_requests(pod.spec))
        if pod.spec.affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution:
            self._repelling[uid] = pod

    def _leave(self, pod: Pod) -> None:
        node, uid = pod.spec.node_name, pod.metadata.uid
        self._repelling.pop(uid, None)
        if self._pods.get(node, {}).pop(uid, None) is not None:
            self._taken[node] = minus(self._taken[node], pod_requests(pod.spec))
        if not self._pods.get(node):
            self._pods.pop(node, None)
            self._taken.pop(node, None)


def waits(pod: Pod) -> bool:
    """Whether a machine is to be found for it, and by this scheduler."""
    spec = pod.spec
    is_free = not (spec.node_name or pod.has_ended or pod.is_terminating or spec.scheduling_gates)
    return is_free and spec.scheduler_name == SCHEDULER_NAME


def _is_placed(pod: Pod) -> bool:
    """A pod that is being stopped still takes its room, one that has ended takes none."""
    return bool(pod.spec.node_name) and not pod.has_ended


def _is_like(old: Pod | None, new: Pod | None) -> bool:
    """Whether nothing changed that the scheduler looks at."""
    return (
        old is not None
        and new is not None
        and old.metadata.uid == new.metadata.uid
        and (_is_placed(old), old.is_terminating) == (_is_placed(new), new.is_terminating)
        and (waits(old), old.spec, old.metadata.labels) == (waits(new), new.spec, new.metadata.labels)
    )


def _offer(node: Node | None) -> object:
    return node and (node.metadata.labels, node.spec, node.status.allocatable)
