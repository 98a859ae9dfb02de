"""The Deployment controller. The pods belong to the Deployment itself, without a ReplicaSet between them."""

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from holdfast.api.meta import Key
from holdfast.cluster.errors import NotFound
from holdfast.cluster.patches import merge_patch
from holdfast.plane.deployments.staffing import plan_scale
from holdfast.plane.deployments.status import status
from holdfast.plane.deployments.template import pod_body
from holdfast.plane.objects import DEPLOYMENTS, PODS, Deployment, Pod, resource_version_precondition
from holdfast.plane.together import gather_all
from holdfast.runtime.cache import Store
from holdfast.runtime.clocks import Now
from holdfast.runtime.controller import Controller, Watch, owned_by
from holdfast.runtime.operator import Operator
from holdfast.runtime.result import Done, RequeueAfter, Result, TerminalError
from holdfast.runtime.writes import TrackedClient, WriteTracker

BY_DEPLOYMENT = "deployment"

_owner = owned_by(DEPLOYMENTS)


def _index(pod: Pod) -> list[str]:
    return [str(key) for key in _owner(pod)]


class DeploymentReconciler:
    def __init__(self, deployments: Store[Deployment], pods: Store[Pod], writer: WriteTracker, now: Now) -> None:
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
        """Nothing here is final."""

    async def _stop(self, pod: Pod, session: TrackedClient) -> None:
        with suppress(NotFound):
            await session.delete(PODS, pod.metadata.key, uid=pod.metadata.uid)

    async def _write_status(self, deployment: Deployment, pods: Sequence[Pod], session: TrackedClient) -> None:
        new = status(deployment, pods, self._now())
        patch = merge_patch(msgspec.to_builtins(deployment.status), msgspec.to_builtins(new))
        if patch:
            body = {"metadata": resource_version_precondition(deployment), "status": patch}
            await session.patch_status(DEPLOYMENTS, deployment.metadata.key, body)


def _belongs(pod: Pod, deployment: Deployment) -> bool:
    owner = pod.metadata.controller
    return owner is not None and owner.uid == deployment.metadata.uid


def deployments(operator: Operator, *, now: Now) -> Controller[Deployment]:
    writer = operator.writer()
    pods = operator.store(PODS, {BY_DEPLOYMENT: _index})
    reconciler = DeploymentReconciler(operator.store(DEPLOYMENTS), pods, writer, now)
    return Controller(
        name="deployment", resource=DEPLOYMENTS, reconciler=reconciler, writer=writer, watches=(Watch(PODS, _owner),)
    )
