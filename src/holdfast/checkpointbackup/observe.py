"""Reads a CheckpointBackup, its pod, the node and the node's agent from the caches, and who has a run of which pod."""

from collections.abc import Callable, Iterable
from datetime import datetime

from msgspec import Struct

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.api.core.objects import Node, Pod
from holdfast.api.meta import Key
from holdfast.checkpointbackup.snapshot import CheckpointBackupSnapshot, is_under_way, status_of
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, NODES, PODS
from holdfast.runtime.children import BY_NODE, node_of
from holdfast.runtime.informer import Store
from holdfast.runtime.operator import Operator
from holdfast.times import parse_optional_time

BY_POD = "backed-up-pod"
BY_RUN_NODE = "run-node"
BY_APP = "app"
# What the agents' DaemonSet calls its pods.
APP_LABEL, AGENT = "app.kubernetes.io/name", "holdfast-node"


def pod_named_by(backup: CheckpointBackup) -> Iterable[str]:
    return (str(Key(backup.metadata.namespace, backup.spec.pod_ref.name)),)


def node_of_run(backup: CheckpointBackup) -> Iterable[str]:
    """The node on which a run is under way."""
    return (status_of(backup).node_name,) if is_under_way(backup) else ()


def app_of(pod: Pod) -> tuple[str, ...]:
    """Only the agents of nodes are of interest."""
    return (AGENT,) if pod.metadata.labels.get(APP_LABEL) == AGENT and pod.spec.node_name else ()


class CheckpointBackupCaches(Struct, frozen=True):
    """The stores that the controller reads; those of pods and nodes are shared with the other kinds."""

    backups: Store[CheckpointBackup]
    pods: Store[Pod]
    nodes: Store[Node]

    @classmethod
    def of(cls, operator: Operator) -> "CheckpointBackupCaches":
        return cls(
            backups=operator.store(CHECKPOINT_BACKUPS, {BY_POD: pod_named_by, BY_RUN_NODE: node_of_run}),
            pods=operator.store(PODS, {BY_NODE: node_of, BY_APP: app_of}),
            nodes=operator.store(NODES),
        )

    def snapshot(self, backup: CheckpointBackup) -> CheckpointBackupSnapshot:
        pod = self.pods.get(Key(backup.metadata.namespace, backup.spec.pod_ref.name))
        node = status_of(backup).node_name if is_under_way(backup) else pod.spec.node_name if pod is not None else ""
        return CheckpointBackupSnapshot(
            backup=backup,
            pod=pod,
            node=self.nodes.get(Key("", node)) if node else None,
            has_ready_agent=bool(node) and any(map(is_ready_agent, self.pods.by(BY_NODE, node))),
        )

    def agents(self) -> list[Pod]:
        """The agents' pods, ready or not, each on its node."""
        return self.pods.by(BY_APP, AGENT)

    # Which backups a change concerns.

    def keys_of_pod(self, pod: Pod) -> Iterable[Key]:
        """Backups of the pod; and of an agent's pod, the runs on its node."""
        yield from self._keys(BY_POD, str(pod.metadata.key))
        if app_of(pod):
            yield from self._keys(BY_RUN_NODE, pod.spec.node_name)

    def keys_on_node(self, node: str) -> Iterable[Key]:
        return self._keys(BY_RUN_NODE, node)

    def keys_of_same_pod(self, backup: CheckpointBackup) -> Iterable[Key]:
        """The other backups of the pod: they may wait for this one."""
        for value in pod_named_by(backup):
            yield from (key for key in self._keys(BY_POD, value) if key != backup.metadata.key)

    def _keys(self, index: str, value: str) -> list[Key]:
        return [backup.metadata.key for backup in self.backups.by(index, value)]


def is_ready_agent(pod: Pod) -> bool:
    return pod.metadata.labels.get(APP_LABEL) == AGENT and pod.condition("Ready") is not None


class _Claim(Struct, frozen=True):
    key: Key
    uid: str
    run: int


class PodClaims:
    """Which backup may run on a pod. The cache shows a run only a moment after it has begun, so claims are remembered.

    `claim` does not wait: of two backups that are due at the same moment, one gets the pod.
    """

    def __init__(self, backups: Store[CheckpointBackup]) -> None:
        self._backups = backups
        self._claims: dict[str, _Claim] = {}

    def claim(self, pod: Pod, backup: CheckpointBackup) -> str:
        """Claim the pod for the backup's next run; the name of the other backup if that has a run under way."""
        meta, uid = backup.metadata, pod.metadata.uid
        for other in self._backups.by(BY_POD, str(pod.metadata.key)):
            is_other = other.metadata.key != meta.key
            if is_other and is_under_way(other) and status_of(other).pod_uid == uid:
                return other.metadata.name
        held = self._claims.get(uid)
        if held is not None and held.key != meta.key and self._is_valid(held):
            return held.key.name
        self._claims[uid] = _Claim(meta.key, meta.uid, status_of(backup).run + 1)
        return ""

    def release(self, key: Key) -> None:
        """No run of the backup is under way or about to begin."""
        for uid in [uid for uid, claim in self._claims.items() if claim.key == key]:
            del self._claims[uid]

    def _is_valid(self, claim: _Claim) -> bool:
        """The run is about to begin or under way, as far as the cache shows."""
        backup = self._backups.get(claim.key)
        if backup is None or backup.metadata.uid != claim.uid:
            return False
        run = status_of(backup).run
        return run < claim.run or (run == claim.run and is_under_way(backup))


class Stopwatch:
    """How long something has lasted that began at a written time: a wall clock that is set later changes nothing."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._first: dict[Key, tuple[str, float]] = {}

    def age_s(self, key: Key, what: str, since: datetime | None, now: datetime) -> float:
        """`what` names what is measured for the key: with another name it is measured anew."""
        clock_s = self._clock()
        known, began_s = self._first.get(key, ("", 0.0))
        if known != what:
            age_s = (now - since).total_seconds() if since is not None else 0.0
            began_s = clock_s - max(0.0, age_s)
            self._first[key] = (what, began_s)
        return clock_s - began_s

    def forget(self, key: Key) -> None:
        self._first.pop(key, None)


def ages(observed: CheckpointBackupSnapshot, stopwatch: Stopwatch, now: datetime) -> tuple[float, float]:
    """The ages of the run under way and of the run that is due, in seconds; 0 where there is none."""
    status, meta = observed.status, observed.backup.metadata
    if observed.is_under_way:
        began = parse_optional_time(status.start_time)
        return stopwatch.age_s(meta.key, f"{meta.uid} run {status.run}", began, now), 0.0
    due = parse_optional_time(status.next_checkpoint_time)
    if due is not None and due <= now:
        return 0.0, stopwatch.age_s(meta.key, f"{meta.uid} due {status.next_checkpoint_time}", due, now)
    stopwatch.forget(meta.key)
    return 0.0, 0.0
