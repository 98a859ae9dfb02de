"""Looks for free nodes for replicas in the ledger that all kinds share, and reserves what status has assigned.

There is no queue: a replica that finds no room is given a machine. It is asked for again when room appears before a
machine is to be had.
"""

import asyncio
from collections.abc import Callable, Collection
from math import inf

import msgspec

from holdfast.api.core.objects import Pod, PodSpec
from holdfast.api.meta import Key
from holdfast.api.provisionedinstance import INSTANCE_LABEL
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.api.spotinstancejob_status import ReplicaStatus
from holdfast.cluster.resources import SPOT_INSTANCE_JOBS
from holdfast.pods.restore.nodes import RESTORE_LABEL, RESTORE_VALUE
from holdfast.pods.template import Defaults
from holdfast.runtime.informer import Informers
from holdfast.runtime.ledger import SharedLedger
from holdfast.scheduling.constraints import PodRequirements, gpus_in, shape_of
from holdfast.scheduling.ledger import NodeCapacity
from holdfast.scheduling.resources import how_many_fit, pod_requests
from holdfast.spotinstancejob.replica_job import ReplicaAttempt, replica_template, save_mode
from holdfast.spotinstancejob.snapshot import PREPARING, STARTED, status_of

# How long a node that was found is held until status names it: a reconcile takes far less.
OFFER_S = 60.0
FINISHED = ("Succeeded", "Failed")


def reservation_id(job: SpotInstanceJob, replica: ReplicaStatus) -> str:
    """The label of the attempt's pod, by which the ledger knows that the pod has come."""
    return f"{job.metadata.uid}-{replica.replica}-{replica.attempt}"


class ReplicaPlacement:
    """An event source: queues a job that waits for a node when one has room."""

    def __init__(self, shared_ledger: SharedLedger, defaults: Defaults) -> None:
        self._shared_ledger = shared_ledger
        self._ledger = shared_ledger.ledger
        self._defaults = defaults
        self._shapes: dict[str, tuple[int, PodRequirements]] = {}
        self._reserved: dict[str, frozenset[str]] = {}
        """By uid of a job the reservations that its status has."""
        self._waiting: dict[Key, PodRequirements] = {}
        self._occupied: dict[str, Key] = {}
        """Machines whose room somebody else has taken, and the job that waits for it."""
        self._changed: set[str] = set()
        self._add: Callable[[Key], None] = lambda _: None

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        self._add = add
        self._shared_ledger.attach(informers)
        informers.of(SPOT_INSTANCE_JOBS).handlers.append(self._on_job_change)
        self._ledger.listeners.append(self._on_node_change)

    def find(self, job: SpotInstanceJob, replica: ReplicaStatus, excluded: Collection[str], *, restores: bool) -> str:
        """A node with room for the replica, reserved for the moment; "" where there is none.

        `restores`: the replica may have to be made from a container checkpoint there.
        """
        shape, reservation = self.shape(job), reservation_id(job, replica)
        self._ledger.release(reservation)
        fitting = (
            node
            for node in self._ledger.nodes.values()
            if node.name not in excluded and self._fits(node, shape) and (not restores or _may_restore(node))
        )
        chosen = min(fitting, key=lambda node: (-gpus_in(self._ledger.available(node.name)), node.name), default=None)
        if chosen is None:
            self._waiting[job.metadata.key] = shape
            return ""
        until_s = asyncio.get_running_loop().time() + OFFER_S
        self._ledger.reserve(reservation, chosen.name, shape.requests, until_s)
        return chosen.name

    def fits_on(self, job: SpotInstanceJob, replica: ReplicaStatus, node: str, leaving: Collection[Pod] = ()) -> bool:
        """Whether the replica's own machine has room for it, once the pods that are to leave it have left.

        If not, the job is queued when the machine changes.
        """
        reservation = self._ledger.reservations.get(reservation_id(job, replica))
        if reservation is not None and reservation.node == node:
            return True
        if how_many_fit(self.shape(job).requests, self._free(node, leaving)) > 0:
            return True
        self._occupied[node] = job.metadata.key
        return False

    def lacking(self, job: SpotInstanceJob, node: str, leaving: Collection[Pod] = ()) -> dict[str, int]:
        """What the replica asks for and the node does not have free, by resource."""
        free, requests = self._free(node, leaving), self.shape(job).requests
        return {name: amount for name, amount in requests.items() if free.get(name, 0) < amount}

    def offers(self, node: str, resource: str) -> int:
        """What the node would have if it were empty."""
        found = self._ledger.nodes.get(node)
        return found.offered.get(resource, 0) if found is not None else 0

    def settled(self, key: Key) -> None:
        """Nothing of the job waits for a free node."""
        self._waiting.pop(key, None)

    def forget(self, uid: str, key: Key) -> None:
        """The job is gone: nothing is reserved for it any more."""
        self.settled(key)
        self._shapes.pop(uid, None)
        for reservation in self._reserved.pop(uid, frozenset()):
            self._ledger.release(reservation)

    def shape(self, job: SpotInstanceJob) -> PodRequirements:
        """The requirements of a replica's pod, computed once for each spec."""
        uid, generation = job.metadata.uid, job.metadata.generation
        known = self._shapes.get(uid)
        if known is None or known[0] != generation:
            mode = status_of(job).checkpoint_mode or save_mode(job, can_restore=False)
            template = replica_template(job, ReplicaAttempt(replica=0, attempt=0, mode=mode), self._defaults)
            pod = msgspec.convert(template["spec"], PodSpec)
            known = generation, shape_of(pod, template["metadata"]["labels"], job.metadata.namespace)
            self._shapes[uid] = known
        return known[1]

    def _free(self, node: str, leaving: Collection[Pod]) -> dict[str, int]:
        free = dict(self._ledger.free(node)) if node in self._ledger.nodes else {}
        for pod in leaving:
            for name, amount in pod_requests(pod.spec).items():
                free[name] = free.get(name, 0) + amount
        return free

    def _fits(self, node: NodeCapacity, shape: PodRequirements) -> bool:
        """The machines of jobs are for the replicas that they were ordered for."""
        if INSTANCE_LABEL in node.labels or node.name in self._ledger.nodes_held_for_gangs:
            return False
        if not shape.matches(node) or not shape.can_run_on(node):
            return False
        return how_many_fit(shape.requests, self._ledger.available(node.name)) > 0

    def _on_job_change(self, old: SpotInstanceJob | None, new: SpotInstanceJob | None) -> None:
        """What status assigns is reserved until its pod has come, also what an earlier operator has assigned."""
        if new is None:
            if old is not None:
                self.forget(old.metadata.uid, old.metadata.key)
            return
        if old is not None and old.metadata.uid != new.metadata.uid:
            self.forget(old.metadata.uid, old.metadata.key)
        status, wanted = status_of(new), dict[str, str]()
        if status.phase not in FINISHED:
            assigned = (each for each in status.job_statuses if each.phase in (*PREPARING, *STARTED))
            wanted = {reservation_id(new, each): each.node_name for each in assigned if each.node_name}
        for reservation in self._reserved.get(new.metadata.uid, frozenset()) - wanted.keys():
            self._ledger.release(reservation)
        self._reserved[new.metadata.uid] = frozenset(wanted)
        for reservation, node in wanted.items():
            held = self._ledger.reservations.get(reservation)
            if held is None or held.node != node or held.until_s < inf:
                self._ledger.reserve(reservation, node, self.shape(new).requests, inf)

    def _on_node_change(self, name: str) -> None:
        """Changes come in bursts: the jobs that wait are looked through once for all of them."""
        if name in self._occupied:
            self._add(self._occupied.pop(name))
        if self._waiting and not self._changed:
            asyncio.get_running_loop().call_soon(self._wake)
        if self._waiting:
            self._changed.add(name)

    def _wake(self) -> None:
        names, self._changed = self._changed, set()
        nodes = [self._ledger.nodes[name] for name in names if name in self._ledger.nodes]
        for key, shape in list(self._waiting.items()):
            if any(self._fits(node, shape) for node in nodes):
                del self._waiting[key]
                self._add(key)


def _may_restore(node: NodeCapacity) -> bool:
    return node.labels.get(RESTORE_LABEL) == RESTORE_VALUE
