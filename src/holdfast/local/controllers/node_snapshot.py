"""The pods on each node and the resources they use, updated with every change instead of recomputed.

A pod that was just bound counts at once, before the cache shows the binding; otherwise two pods could be given the same
capacity.
"""

from collections.abc import Callable, Iterable

from holdfast.api.meta import Key
from holdfast.local.controllers.objects import CLAIMS, NODES, PODS, Claim, Node, Pod
from holdfast.runtime.informer import Informers
from holdfast.scheduling.resources import Amounts, minus, plus, pod_requests

SCHEDULER_NAME = "default-scheduler"


class NodeSnapshot:
    """A watch of the scheduler; `dirty` is whether a change may make a waiting pod schedulable."""

    def __init__(self) -> None:
        self.dirty = True
        self._pods: dict[str, dict[str, Pod]] = {}
        self._taken: dict[str, Amounts] = {}
        self._assumed: dict[str, Pod] = {}
        self._with_anti_affinity: dict[str, Pod] = {}
        self._waiting: dict[str, Pod] = {}

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        def node_changed(old: Node | None, new: Node | None) -> None:
            if _schedulable_state(old) != _schedulable_state(new):
                self.dirty = True
                add(Key("", ""))

        def claim_changed(_old: Claim | None, _new: Claim | None) -> None:
            self.dirty = True
            add(Key("", ""))

        informers.of(PODS).handlers.append(self.pod_changed)
        informers.of(NODES).handlers.append(node_changed)
        informers.of(CLAIMS).handlers.append(claim_changed)

    def waiting(self) -> list[Pod]:
        """The pods to schedule, in order of arrival."""
        return [pod for uid, pod in self._waiting.items() if uid not in self._assumed]

    def on(self, node: str) -> Iterable[Pod]:
        return self._pods.get(node, {}).values()

    def taken(self, node: str) -> Amounts:
        return self._taken.get(node, {})

    def all_pods(self) -> Iterable[Pod]:
        return (pod for pods in self._pods.values() for pod in pods.values())

    def pods_with_anti_affinity(self) -> Iterable[Pod]:
        """The pods on nodes that have a required anti-affinity."""
        return self._with_anti_affinity.values()

    def assume(self, bound: Pod) -> None:
        """`bound` is the pod with its node, as the cluster will show it after the binding."""
        self._assumed[bound.metadata.uid] = bound
        self._add_pod(bound)

    def forget(self, bound: Pod) -> None:
        """The binding failed."""
        self._end_assumption(bound)
        self.dirty = True

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self._queue(old, new)
        if _is_unchanged(old, new):
            return
        for pod in (old, new):
            # An assumed binding ends when the cache shows a node, or that the pod is gone.
            if pod is not None and (new is None or pod.metadata.uid != new.metadata.uid or not waits(new)):
                self._end_assumption(pod)
        if old is not None and _uses_capacity(old):
            self._remove_pod(old)
        if new is not None and _uses_capacity(new):
            self._add_pod(new)
        self.dirty = True

    def _queue(self, old: Pod | None, new: Pod | None) -> None:
        """A pod keeps its position in the queue while it changes."""
        if new is not None and waits(new):
            self._waiting[new.metadata.uid] = new
        elif new is not None:
            self._waiting.pop(new.metadata.uid, None)
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._waiting.pop(old.metadata.uid, None)

    def _end_assumption(self, pod: Pod) -> None:
        assumed = self._assumed.pop(pod.metadata.uid, None)
        if assumed is not None:
            self._remove_pod(assumed)

    def _add_pod(self, pod: Pod) -> None:
        node, uid = pod.spec.node_name, pod.metadata.uid
        self._pods.setdefault(node, {})[uid] = pod
        self._taken[node] = plus(self._taken.get(node, {}), pod_requests(pod.spec))
        if pod.spec.affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution:
            self._with_anti_affinity[uid] = pod

    def _remove_pod(self, pod: Pod) -> None:
        node, uid = pod.spec.node_name, pod.metadata.uid
        self._with_anti_affinity.pop(uid, None)
        if self._pods.get(node, {}).pop(uid, None) is not None:
            self._taken[node] = minus(self._taken[node], pod_requests(pod.spec))
        if not self._pods.get(node):
            self._pods.pop(node, None)
            self._taken.pop(node, None)


def waits(pod: Pod) -> bool:
    """Whether the pod needs a node, and from this scheduler."""
    spec = pod.spec
    is_pending = not (spec.node_name or pod.has_ended or pod.is_terminating or spec.scheduling_gates)
    return is_pending and spec.scheduler_name == SCHEDULER_NAME


def _uses_capacity(pod: Pod) -> bool:
    """A terminating pod still uses its node's capacity; a pod that has ended uses none."""
    return bool(pod.spec.node_name) and not pod.has_ended


def _is_unchanged(old: Pod | None, new: Pod | None) -> bool:
    """Whether nothing changed that the scheduler reads."""
    return (
        old is not None
        and new is not None
        and old.metadata.uid == new.metadata.uid
        and (_uses_capacity(old), old.is_terminating) == (_uses_capacity(new), new.is_terminating)
        and (waits(old), old.spec, old.metadata.labels) == (waits(new), new.spec, new.metadata.labels)
    )


def _schedulable_state(node: Node | None) -> object:
    return node and (node.metadata.labels, node.spec, node.status.allocatable)
