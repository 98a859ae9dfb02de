"""Carries out what was decided for a ProvisionedInstance: its finalizer and Node, its tasks, and the news for pools."""

from contextlib import suppress
from datetime import datetime

import msgspec

from holdfast.api.core.objects import Node, Pod
from holdfast.api.core.selectors import Taint
from holdfast.api.meta import Key
from holdfast.api.provisionedinstance import (
    INSTANCE_LABEL,
    MACHINE_FINALIZER,
    RESERVED_TAINT,
    SPOT_NODE_LABEL,
    ProvisionedInstance,
)
from holdfast.cluster.errors import Conflict, NotFound
from holdfast.cluster.protocol import JSON, DeleteOptions
from holdfast.cluster.resources import NODES, PODS, PROVISIONED_INSTANCES, SPOT_INSTANCE_JOBS
from holdfast.machines.phases.step import (
    AddFinalizer,
    CancelTask,
    DropFinalizer,
    Effect,
    RemoveNode,
    ReportLaunched,
    ReportNothing,
    ReportReady,
    ReportRefused,
    ReportTakenBack,
    ReserveNode,
    RevokeToken,
    StartTask,
)
from holdfast.machines.snapshot import MachineSnapshot, with_instance
from holdfast.machines.tasks import MachineTasks
from holdfast.runtime.read_your_writes import TrackedClient
from holdfast.scheduling.machine_pools import MachinePools, machine_request


class MachineApplier:
    def __init__(self, tasks: MachineTasks, pools: MachinePools) -> None:
        self._tasks = tasks
        self._pools = pools

    async def apply(
        self, effect: Effect, seen: MachineSnapshot, session: TrackedClient, now: datetime
    ) -> MachineSnapshot | None:
        """What is observed then; None when the object is gone with it."""
        match effect:
            case AddFinalizer():
                return with_instance(seen, await _add_finalizer(session, seen.instance))
            case DropFinalizer():
                return await _drop_finalizer(session, seen)
            case StartTask(task, cause):
                self._tasks.start(task, cause, seen)
            case CancelTask(task, if_queued):
                self._tasks.cancel(task, seen, if_queued=if_queued)
            case ReserveNode(node):
                await _reserve(session, seen.instance, node)
            case RemoveNode(node, pods):
                await _remove_node(session, node, pods)
            case RevokeToken():
                await self._tasks.revoke(seen)
            case _:
                self._report_to_pools(effect, seen, now)
        return seen

    def _report_to_pools(self, effect: Effect, seen: MachineSnapshot, now: datetime) -> None:
        by = str(seen.instance.metadata.key)
        if isinstance(effect, ReportNothing) or seen.template is None:
            self._pools.released(by)
            return
        request = machine_request(seen.template, spot=seen.instance.spec.preemptible)
        match effect:
            case ReportLaunched():
                self._pools.launched(request, seen.zone)
            case ReportReady():
                self._pools.ready(request, seen.zone)
            case ReportRefused(refusal):
                self._pools.refused(request, seen.zone, refusal, now, by=by)
            case ReportTakenBack():
                self._pools.taken_back(request, seen.zone, now)


async def _add_finalizer(session: TrackedClient, instance: ProvisionedInstance) -> ProvisionedInstance:
    return await _set_finalizers(session, instance, (*instance.metadata.finalizers, MACHINE_FINALIZER))


async def _drop_finalizer(session: TrackedClient, seen: MachineSnapshot) -> MachineSnapshot | None:
    left = tuple(each for each in seen.instance.metadata.finalizers if each != MACHINE_FINALIZER)
    with suppress(NotFound):  # gone already
        instance = await _set_finalizers(session, seen.instance, left)
        return None if seen.is_deleted else with_instance(seen, instance)
    return None


async def _set_finalizers(
    session: TrackedClient, instance: ProvisionedInstance, finalizers: tuple[str, ...]
) -> ProvisionedInstance:
    guard = {"resourceVersion": instance.metadata.resource_version, "finalizers": list(finalizers)}
    return await session.patch(PROVISIONED_INSTANCES, instance.metadata.key, {"metadata": guard})


async def _reserve(session: TrackedClient, instance: ProvisionedInstance, node: Node) -> None:
    """One write: the taint, where the machine is for a job, and the labels, where nobody has set them at the join."""
    labels = {SPOT_NODE_LABEL: "true", INSTANCE_LABEL: instance.metadata.uid}
    missing = {name: value for name, value in labels.items() if node.metadata.labels.get(name) != value}
    if not instance.spec.preemptible:
        missing.pop(SPOT_NODE_LABEL, None)
    taints = _reserved(node.spec.taints, _job_uid(instance))
    if not missing and taints == node.spec.taints:
        return
    patch: JSON = {"metadata": {"resourceVersion": node.metadata.resource_version}}
    if missing:
        patch["metadata"]["labels"] = missing
    if taints != node.spec.taints:
        patch["spec"] = {"taints": msgspec.to_builtins(taints)}
    await session.patch(NODES, node.metadata.key, patch)


def _reserved(taints: tuple[Taint, ...], job_uid: str) -> tuple[Taint, ...]:
    if not job_uid:
        return taints
    reserved = Taint(key=RESERVED_TAINT, value=job_uid, effect="NoSchedule")
    return (*(taint for taint in taints if taint.key != RESERVED_TAINT), reserved)


def _job_uid(instance: ProvisionedInstance) -> str:
    """ "" for a machine that was ordered by hand: whoever did so reserves it, or does not."""
    owners = instance.metadata.owner_references
    return next((owner.uid for owner in owners if owner.kind == SPOT_INSTANCE_JOBS.kind), "")


async def _remove_node(session: TrackedClient, node: Node | None, pods: tuple[Pod, ...]) -> None:
    """No kubelet is left that could end the pods, and their Jobs wait for that."""
    for pod in pods:
        with suppress(NotFound, Conflict):
            options = DeleteOptions(uid=pod.metadata.uid, grace_period_s=0)
            await session.delete(PODS, pod.metadata.key, options)
    if node is not None and not node.metadata.deletion_timestamp:
        with suppress(NotFound, Conflict):
            await session.delete(NODES, Key("", node.metadata.name), DeleteOptions(uid=node.metadata.uid))
