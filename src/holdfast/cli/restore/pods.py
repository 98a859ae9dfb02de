"""Creates the pods of a restore and waits for them: first one that brings the base images, then the restored one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from msgspec import structs

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cli.restore.images import RestoreFailed
from holdfast.cli.session import Session, by_name, follow
from holdfast.cluster.errors import AlreadyExists, Conflict, NotFound
from holdfast.cluster.protocol import Change, DeleteOptions, Listing, Resource
from holdfast.cluster.resources import PODS
from holdfast.pods.restore.failure import (
    NODES_IN_VAIN,
    CreationFailure,
    base_image_failure,
    creation_failure,
    has_base_images,
    unusable_image,
)
from holdfast.pods.restore.nodes import RestorableImage, RestoreNode
from holdfast.pods.restore.template import RestorePlan, base_image_pod, restored_pod
from holdfast.pods.start_problems import problem_of

# How long a pull may fail: two tries of the kubelet after the first.
PULL_PATIENCE_S = 40.0
RESTORE_NODES = Resource(group="", version="v1", kind="Node", plural="nodes", model=RestoreNode, namespaced=False)


class PodRestorer:
    """Carries a plan out. `say` tells the user how it goes."""

    def __init__(self, session: Session, template: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self._session = session
        self._template = template
        self._say = say
        self.last: Pod | None = None
        """The pod that was waited for last, for the message of a timeout."""

    async def restore(self, plan: RestorePlan) -> Pod:
        """The pod, once it runs. Raises RestoreFailed when it can't be created on any node."""
        failures: dict[str, CreationFailure] = {}
        while plan.nodes and len(failures) < NODES_IN_VAIN:
            chosen = await self._bring_base_images(plan)
            self._say(f"creating pod {plan.name}")
            pod = await self._create(restored_pod(self._template, structs.replace(plan, nodes=chosen)))
            pod = await self._until(
                pod, partial(_has_outcome, images=plan.images), partial(_may_pass, images=plan.images)
            )
            failure = creation_failure(pod, plan.images)
            if failure is None:
                return pod
            await self._delete(pod)
            failures[failure.node] = failure
            self._say(failure.message)
            plan = structs.replace(plan, nodes=tuple(each for each in plan.nodes if each.name != failure.node))
        last = list(failures.values())[-1]
        raise RestoreFailed(unusable_image(failures) or f"{last.message}; there is no other node to try")

    async def _bring_base_images(self, plan: RestorePlan) -> tuple[RestoreNode, ...]:
        """The node that has them now; all nodes if there is nothing to bring."""
        body = base_image_pod(self._template, plan)
        if body is None:
            return plan.nodes
        self._say("bringing the base image to a node")
        pod = await self._create(body)
        try:
            found = await self._until(
                pod,
                lambda seen: has_base_images(seen) or bool(base_image_failure(seen)),
                lambda seen: bool(base_image_failure(seen)),
            )
        finally:
            await self._delete(pod)
        if failure := base_image_failure(found):
            raise RestoreFailed(failure)
        return tuple(each for each in plan.nodes if each.name == found.spec.node_name)

    async def _create(self, body: Mapping[str, Any]) -> Pod:
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        try:
            return await self._session.cluster.create(PODS, body, namespace=namespace)
        except AlreadyExists:
            raise RestoreFailed(
                f"there is a pod {Key(namespace, name)} already: delete it, or choose another name with --name"
            ) from None

    async def _until(self, pod: Pod, enough: Callable[[Pod], bool], may_pass: Callable[[Pod], bool]) -> Pod:
        """may_pass: whether what is enough is a failure that the kubelet may get over within PULL_PATIENCE_S."""
        try:
            async with asyncio.timeout(None) as patience:
                async for seen in self._versions(pod.metadata.key):
                    if enough(seen) and not may_pass(seen):
                        return seen
                    if enough(seen) and patience.when() is None:
                        patience.reschedule(asyncio.get_running_loop().time() + PULL_PATIENCE_S)
        except TimeoutError:
            assert self.last is not None
            return self.last
        raise RestoreFailed(f"pod {pod.metadata.key} was deleted while it was waited for")

    async def _versions(self, key: Key) -> AsyncIterator[Pod]:
        """The pod whenever it has changed, until it is gone."""
        steps = follow(self._session.cluster, PODS, namespace=key.namespace, fields=by_name(key.name))
        async with aclosing(steps):
            async for step in steps:
                if isinstance(step, Listing):
                    seen, gone = next(iter(step.items), None), not step.items
                else:
                    seen, gone = step.object, step.change is Change.DELETED
                if gone:
                    return
                if seen is not None and seen.is_terminating:
                    where = f" on {seen.spec.node_name}" if seen.spec.node_name else ""
                    raise RestoreFailed(f"pod {key}{where} is being deleted: its node is lost, or somebody deleted it")
                if seen is not None:
                    self.last = seen
                    yield seen

    async def _delete(self, pod: Pod) -> None:
        with suppress(NotFound, Conflict):
            options = DeleteOptions(uid=pod.metadata.uid, grace_period_s=0)
            await self._session.cluster.delete(PODS, pod.metadata.key, options)


def _may_pass(pod: Pod, images: tuple[RestorableImage, ...]) -> bool:
    failure = creation_failure(pod, images)
    return failure is not None and failure.may_pass


def _has_outcome(pod: Pod, images: tuple[RestorableImage, ...]) -> bool:
    if pod.is_finished or creation_failure(pod, images) is not None:
        return True
    statuses = pod.status.container_statuses
    has_started = bool(statuses) and all(each.state.waiting is None for each in statuses)
    return pod.status.phase == "Running" and has_started


def why_not(pod: Pod | None) -> str:
    """What a pod still waits for, as the scheduler and the kubelet say it."""
    if pod is None:
        return ""
    return f"pod {pod.metadata.name}: {problem_of(pod) or pod.status.phase}"
