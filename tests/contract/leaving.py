"""Deleting a namespace with what tests leave in it."""

from contextlib import suppress
from typing import TypeVar

from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import Cluster, Resource
from holdfast.cluster.resources import GPU_WORKLOADS
from tests.contract.kinds import GADGETS, NAMESPACES

T = TypeVar("T", bound=Object)


async def leave(cluster: Cluster, namespace: str) -> None:
    """Nobody waits until it is gone, but it has to go: the controllers try for ever what a finalizer holds up."""
    await release(cluster, GADGETS, namespace)
    await release(cluster, GPU_WORKLOADS, namespace)
    await cluster.delete(NAMESPACES, Key("", namespace))


async def release(cluster: Cluster, kind: Resource[T], namespace: str) -> None:
    with suppress(NotFound):  # the kind, or one that goes just now
        for each in (await cluster.list(kind, namespace=namespace)).items:
            if each.metadata.finalizers:
                await cluster.patch(kind, each.metadata.key, {"metadata": {"finalizers": None}})
