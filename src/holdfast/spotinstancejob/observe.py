"""Reads a SpotInstanceJob and all that belongs to it from the caches."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import Struct

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.api.core.objects import Job, Node, Pod
from holdfast.api.machine_ends import status_of as machine_status
from holdfast.api.meta import Key, Object
from holdfast.api.provisionedinstance import ProvisionedInstance
from holdfast.api.spotinstancejob import KIND, SpotInstanceJob
from holdfast.api.spotinstancevm import SpotInstanceVM
from holdfast.cluster.resources import (
    CHECKPOINT_BACKUPS,
    JOBS,
    NODES,
    PODS,
    PROVISIONED_INSTANCES,
    SPOT_INSTANCE_JOBS,
    SPOT_INSTANCE_VMS,
)
from holdfast.pods.failure import has_preemption_notice
from holdfast.pods.restore.nodes import RESTORE_LABEL, RESTORE_VALUE
from holdfast.pods.template import MANAGED_SELECTOR
from holdfast.runtime.children import BY_NODE, BY_OWNER, node_of, owner_uid
from holdfast.runtime.controller import owned_by
from holdfast.runtime.informer import Informers, Store
from holdfast.runtime.operator import Operator
from holdfast.scheduling.ledger import RESERVATION_LABEL
from holdfast.spotinstancejob import names
from holdfast.spotinstancejob.snapshot import SpotInstanceJobSnapshot, status_of

T = TypeVar("T", bound=Object)

BY_SPOT_JOB = "spot-job"
BY_ASSIGNED = "spot-node"
BY_TEMPLATE = "spot-template"
OWNER = owned_by(SPOT_INSTANCE_JOBS)


def key_of(pod: Pod) -> Iterable[Key]:
    """The job of a replica's pod, or of a pod that brings base images for one."""
    replica = names.replica_of(pod)
    return (replica.job,) if replica is not None else OWNER(pod)


def job_of(pod: Pod) -> Iterable[str]:
    return map(str, key_of(pod))


def ordering_job(machine: ProvisionedInstance) -> Iterable[Key]:
    """The job that a machine was ordered for. It does not manage its machines: they outlive it until they are gone."""
    for owner in machine.metadata.owner_references:
        if owner.kind == KIND.kind and owner.api_version.partition("/")[0] == KIND.group:
            yield Key(machine.metadata.namespace, owner.name)


def ordering_uid(machine: ProvisionedInstance) -> Iterable[str]:
    return (owner.uid for owner in machine.metadata.owner_references if owner.kind == KIND.kind)


def assigned_nodes(job: SpotInstanceJob) -> Iterable[str]:
    return (each.node_name for each in status_of(job).job_statuses if each.node_name)


def template_of(job: SpotInstanceJob) -> Iterable[str]:
    return (str(Key(job.metadata.namespace, job.spec.spot_instance_vm_ref.name)),)


class SpotInstanceJobCaches(Struct, frozen=True):
    """The stores that the controller reads: all nodes and pods, and the Jobs that holdfast made."""

    spot_jobs: Store[SpotInstanceJob]
    templates: Store[SpotInstanceVM]
    machines: Store[ProvisionedInstance]
    backups: Store[CheckpointBackup]
    jobs: Store[Job]
    pods: Store[Pod]
    nodes: Store[Node]

    @classmethod
    def of(cls, operator: Operator) -> "SpotInstanceJobCaches":
        return cls(
            spot_jobs=operator.store(SPOT_INSTANCE_JOBS, {BY_ASSIGNED: assigned_nodes, BY_TEMPLATE: template_of}),
            templates=operator.store(SPOT_INSTANCE_VMS),
            machines=operator.store(PROVISIONED_INSTANCES, {BY_SPOT_JOB: ordering_uid}),
            backups=operator.store(CHECKPOINT_BACKUPS, {BY_OWNER: owner_uid}),
            jobs=operator.store(JOBS, {BY_OWNER: owner_uid}, labels=MANAGED_SELECTOR),
            pods=operator.store(PODS, {BY_SPOT_JOB: job_of, BY_NODE: node_of}),
            nodes=operator.store(NODES),
        )

    def snapshot(self, job: SpotInstanceJob) -> SpotInstanceJobSnapshot:
        meta, status = job.metadata, status_of(job)
        jobs = _by_name(self.jobs.by(BY_OWNER, meta.uid))
        machines = _by_name(self.machines.by(BY_SPOT_JOB, meta.uid))
        uids = {each.metadata.uid for each in jobs.values()}
        pods = self.pods.by(BY_SPOT_JOB, str(meta.key))
        # By its reservation a pod is known that still runs when somebody else has deleted its Job.
        place = f"{meta.uid}-"
        own = tuple(
            pod
            for pod in pods
            if uids.intersection(owner_uid(pod)) or pod.metadata.labels.get(RESERVATION_LABEL, "").startswith(place)
        )
        wanted = {*assigned_nodes(job), *(pod.spec.node_name for pod in own)}
        wanted |= {machine_status(each).node_name or "" for each in machines.values()}
        return SpotInstanceJobSnapshot(
            job=job,
            jobs=jobs,
            pods=own,
            image_pods=_by_name(pod for pod in pods if meta.uid in owner_uid(pod)),
            nodes={name: node for name in wanted if (node := self.nodes.get(Key("", name))) is not None},
            machines=machines,
            backups=_by_name(self.backups.by(BY_OWNER, meta.uid)),
            template=self.templates.get(Key(meta.namespace, job.spec.spot_instance_vm_ref.name)),
            can_restore=status.checkpoint_mode is None and self.can_restore(),
        )

    def can_restore(self) -> bool:
        """Whether a node is allowed to make containers from checkpoints."""
        return any(each.metadata.labels.get(RESTORE_LABEL) == RESTORE_VALUE for each in self.nodes)

    def keys_on_node(self, node: str) -> Iterable[Key]:
        """Jobs that have assigned the node to a replica, or have pods there."""
        for job in self.spot_jobs.by(BY_ASSIGNED, node):
            yield job.metadata.key
        for pod in self.pods.by(BY_NODE, node):
            yield from key_of(pod)

    def pods_on(self, node: str) -> Iterable[Pod]:
        return self.pods.by(BY_NODE, node)


def _by_name(objects: Iterable[T]) -> dict[str, T]:
    return {each.metadata.name: each for each in objects}


class NodeWatch(Struct, frozen=True):
    """An event source: the jobs on a node that is lost, comes back, is marked, or is not marked any more."""

    keys_on_node: Callable[[str], Iterable[Key]]

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        def changed(old: Node | None, new: Node | None) -> None:
            node = new or old
            if node is not None and _state(old) != _state(new):
                for key in self.keys_on_node(node.metadata.name):
                    add(key)

        informers.of(NODES).handlers.append(changed)


class TemplateWatch(Struct, frozen=True):
    """An event source: the jobs whose SpotInstanceVM comes, goes or is changed. Its account changes all the time."""

    spot_jobs: Store[SpotInstanceJob]

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        def changed(old: SpotInstanceVM | None, new: SpotInstanceVM | None) -> None:
            template = new or old
            if template is not None and (old is None or new is None or old.spec != new.spec):
                for job in self.spot_jobs.by(BY_TEMPLATE, str(template.metadata.key)):
                    add(job.metadata.key)

        informers.of(SPOT_INSTANCE_VMS).handlers.append(changed)


def _state(node: Node | None) -> tuple[bool, bool]:
    return (node.is_ready, has_preemption_notice(node)) if node is not None else (False, False)
