"""The Deployment controller. The pods belong to the Deployment itself, without a ReplicaSet between them."""

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from holdfast.api.meta import Key
from holdfast.cluster.errors import NotFound
from holdfast.cluster.patches import merge_patch
from holdfast.plane.deployments.staffing import staffing
from holdfast.plane.deployments.status import status
from holdfast.plane.deployments.template import pod_body
from holdfast.plane.objects import DEPLOYMENTS, PODS, Deployment, Pod, guard
from holdfast.plane.together import together
from holdfast.runtime.cache import Store
from holdfast.runtime.clocks import Now
from holdfast.runtime.controller import Controller, Watch, owned_by
from holdfast.runtime.operator import Operator
from holdfast.runtime.result import Done, RequeueAfter, Result, TerminalError
from holdfast.runtime.writes import Session, Writer

BY_DEPLOYMENT = "deployment"

_owner = owned_by(DEPLOYMENTS)


def _index(pod: Pod) -> list[str]:
    return [str(key) for key in _owner(pod)]


class Deployments:
    def __init__(self, deployments: Store[Deployment], pods: Store[Pod], writer: Writer, now: Now) -> None:
        self._deployments = deployments
        self._pods = pods
        self._writer = writer
        self._now = now

    async def reconcile(self, key: Key) -> Result:
        deployment, session = self._deployments.get(key), self._writer.on(key)
        if deployment is None or deployment.metadata.deletion_timestamp:
            return Done()
        pods = [pod for pod in self._pods.by(BY_DEPLOYMENT, str(key)) if _belongs(pod, deployment)]
        steps = staffing(deployment, pods, self._now())
        await self._write_status(deployment, pods, session)
        await together(self._stop(pod, session) for pod in steps.stop)
        body = pod_body(deployment)
        await together(session.create(PODS, body, namespace=key.namespace) for _ in range(steps.create))
        return Done() if steps.again_s is None else RequeueAfter(steps.again_s)

    async def report(self, key: Key, error: TerminalError) -> None:
        """Nothing here is final."""

    async def _stop(self, pod: Pod, session: Session) -> None:
        with suppress(NotFound):
            await session.delete(PODS, pod.metadata.key, uid=pod.metadata.uid)

    async def _write_status(self, deployment: Deployment, pods: Sequence[Pod], session: Session) -> None:
        new = status(deployment, pods, self._now())
        patch = merge_patch(msgspec.to_builtins(deployment.status), msgspec.to_builtins(new))
        if patch:
            body = {"metadata": guard(deployment), "status": patch}
            await session.patch_status(DEPLOYMENTS, deployment.metadata.key, body)


def _belongs(pod: Pod, deployment: Deployment) -> bool:
    owner = pod.metadata.controller
    return owner is not None and owner.uid == deployment.metadata.uid


def deployments(operator: Operator, *, now: Now) -> Controller[Deployment]:
    writer = operator.writer()
    pods = operator.store(PODS, {BY_DEPLOYMENT: _index})
    reconciler = Deployments(operator.store(DEPLOYMENTS), pods, writer, now)
    return Controller(
        name="deployment", resource=DEPLOYMENTS, reconciler=reconciler, writer=writer, watches=(Watch(PODS, _owner),)
    )
