"""A cluster that stands still: no controller makes pods, and no scheduler binds them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import NAMESPACES, NODES
from holdfast.local.apiserver.server import open_cluster
from holdfast.runtime.process import utc_now
from tests.contract.pods import POOL
from tests.gpuworkload.controller.lab import GPU

NAMESPACE = "ml"


@asynccontextmanager
async def still_cluster() -> AsyncIterator[Cluster]:
    cluster = await open_cluster(None, now=utc_now, rng=Random(0))
    await cluster.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    yield cluster
    await cluster.close()


async def add_node(cluster: Cluster, name: str, gpus: int) -> None:
    offered = {GPU: str(gpus), "cpu": "64", "memory": "64Gi", "pods": "110"}
    status = {"capacity": offered, "allocatable": offered, "conditions": [{"type": "Ready", "status": "True"}]}
    await cluster.create(NODES, {"metadata": {"name": name, "labels": {POOL: NAMESPACE}}, "status": status})
