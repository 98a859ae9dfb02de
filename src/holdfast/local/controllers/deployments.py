"""The Deployment controller. The Deployment owns its pods directly, without a ReplicaSet."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

import msgspec
from msgspec import Struct

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import JSON, DeleteOptions
from holdfast.cluster.resources import PODS, merge_patch
from holdfast.local.controllers.job_pods import finished_at, is_active, is_ready
from holdfast.local.controllers.objects import (
    DEPLOYMENTS,
    DeploymentCondition,
    DeploymentStatus,
    TemplatedDeployment,
    gather_all,
    resource_version_precondition,
)
from holdfast.runtime.controller import Controller, Done, RequeueAfter, Result, TerminalError, Watch, owned_by
from holdfast.runtime.informer import Store
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now
from holdfast.runtime.read_your_writes import TrackedClient, WriteTracker
from holdfast.times import format_time

# The pod of a Deployment, and the hash of the template that it was created from.

HASH = "pod-template-hash"


def is_current(pod: Pod, deployment: TemplatedDeployment) -> bool:
    return pod.metadata.labels.get(HASH) == _hash(deployment)


def pod_body(deployment: TemplatedDeployment) -> JSON:
    template, own, template_hash = deployment.spec.template, deployment.metadata, _hash(deployment)
    metadata = template.get("metadata", {})
    identity = {"apiVersion": DEPLOYMENTS.api_version, "kind": DEPLOYMENTS.kind, "name": own.name, "uid": own.uid}
    return {
        "metadata": {
            "generateName": f"{own.name}-{template_hash}-",
            "labels": {**metadata.get("labels", {}), HASH: template_hash},
            "annotations": metadata.get("annotations", {}),
            "ownerReferences": [{**identity, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": template.get("spec", {}),
    }


def _hash(deployment: TemplatedDeployment) -> str:
    return hashlib.sha256(msgspec.json.encode(deployment.spec.template, order="sorted")).hexdigest()[:10]


# Scale: which pods a Deployment creates, and which it deletes.

# How long a pod that has ended counts as a replica: a pod that can't run must not be recreated without a pause.
RECREATE_DELAY_S = 10.0


class ScalePlan(Struct, frozen=True, kw_only=True):
    create: int
    stop: tuple[Pod, ...]
    again_s: float | None


def plan_scale(deployment: TemplatedDeployment, pods: Sequence[Pod], now: datetime) -> ScalePlan:
    """After a template change, old pods end before new pods are created, whatever the strategy is."""
    current = [pod for pod in pods if is_current(pod, deployment)]
    active = sorted(filter(is_active, current), key=is_ready)
    rests = {pod.metadata.uid: _rest_s(pod, now) for pod in current if pod.is_finished and not pod.is_terminating}
    resting = {uid: left_s for uid, left_s in rests.items() if left_s > 0}
    surplus = active[: max(0, len(active) - deployment.spec.replicas)]
    old = [pod for pod in pods if not is_current(pod, deployment)]
    finished = [pod for pod in current if pod.is_finished and pod.metadata.uid not in resting]
    has_left = all(pod.is_finished for pod in old)
    return ScalePlan(
        create=max(0, deployment.spec.replicas - len(active) - len(resting)) if has_left else 0,
        stop=tuple(pod for pod in (*old, *surplus, *finished) if not pod.is_terminating),
        again_s=min(resting.values(), default=None),
    )


def _rest_s(pod: Pod, now: datetime) -> float:
    return RECREATE_DELAY_S - (now - finished_at(pod)).total_seconds()


# The status of a Deployment.

AVAILABLE = "Available"


def status(deployment: TemplatedDeployment, pods: Sequence[Pod], now: datetime) -> DeploymentStatus:
    active, wanted = [pod for pod in pods if is_active(pod)], deployment.spec.replicas
    ready = sum(map(is_ready, active))
    return DeploymentStatus(
        observed_generation=deployment.metadata.generation,
        replicas=len(active),
        updated_replicas=sum(is_current(pod, deployment) for pod in active),
        ready_replicas=ready,
        available_replicas=ready,
        unavailable_replicas=max(wanted, len(active)) - ready,
        conditions=(_available(deployment, format_time(now), is_met=ready >= wanted),),
    )


def _available(deployment: TemplatedDeployment, now: str, *, is_met: bool) -> DeploymentCondition:
    before = next((each for each in deployment.status.conditions if each.type == AVAILABLE), None)
    new = DeploymentCondition(
        type=AVAILABLE,
        status="True" if is_met else "False",
        reason="MinimumReplicasAvailable" if is_met else "MinimumReplicasUnavailable",
        message=f"Deployment {'has' if is_met else 'does not have'} minimum availability.",
        last_update_time=now,
        last_transition_time=now,
    )
    return before if before is not None and before.status == new.status else new


BY_DEPLOYMENT = "deployment"

_owner = owned_by(DEPLOYMENTS)


def _index(pod: Pod) -> list[str]:
    return [str(key) for key in _owner(pod)]


class DeploymentReconciler:
    def __init__(
        self, deployments: Store[TemplatedDeployment], pods: Store[Pod], writer: WriteTracker, now: Now
    ) -> None:
        self._deployments = deployments
        self._pods = pods
        self._writer = writer
        self._now = now

    async def reconcile(self, key: Key) -> Result:
        deployment, session = self._deployments.get(key), self._writer.for_key(key)
        if deployment is None or deployment.metadata.deletion_timestamp:
            return Done()
        pods = [pod for pod in self._pods.by(BY_DEPLOYMENT, str(key)) if _belongs(pod, deployment)]
        steps = plan_scale(deployment, pods, self._now())
        await self._write_status(deployment, pods, session)
        await gather_all(self._stop(pod, session) for pod in steps.stop)
        body = pod_body(deployment)
        await gather_all(session.create(PODS, body, namespace=key.namespace) for _ in range(steps.create))
        return Done() if steps.again_s is None else RequeueAfter(steps.again_s)

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        """No error is terminal here."""

    async def _stop(self, pod: Pod, session: TrackedClient) -> None:
        with suppress(NotFound):
            await session.delete(PODS, pod.metadata.key, DeleteOptions(uid=pod.metadata.uid))

    async def _write_status(self, deployment: TemplatedDeployment, pods: Sequence[Pod], session: TrackedClient) -> None:
        new = status(deployment, pods, self._now())
        patch = merge_patch(msgspec.to_builtins(deployment.status), msgspec.to_builtins(new))
        if patch:
            body = {"metadata": resource_version_precondition(deployment), "status": patch}
            await session.patch_status(DEPLOYMENTS, deployment.metadata.key, body)


def _belongs(pod: Pod, deployment: TemplatedDeployment) -> bool:
    owner = pod.metadata.controller
    return owner is not None and owner.uid == deployment.metadata.uid


def deployments(operator: Operator, *, now: Now) -> Controller[TemplatedDeployment]:
    writer = operator.writer()
    pods = operator.store(PODS, {BY_DEPLOYMENT: _index})
    reconciler = DeploymentReconciler(operator.store(DEPLOYMENTS), pods, writer, now)
    return Controller(
        name="deployment", resource=DEPLOYMENTS, reconciler=reconciler, writer=writer, watches=(Watch(PODS, _owner),)
    )
