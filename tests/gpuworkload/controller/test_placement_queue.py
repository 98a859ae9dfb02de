"""The line follows the caches by itself: nobody is reconciled here."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

from msgspec import structs

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.protocol import Cluster, DeleteOptions
from holdfast.cluster.resources import GPU_WORKLOADS, JOBS, PODS
from holdfast.gpuworkload.job import WORKLOAD_LABEL
from holdfast.gpuworkload.observe import GPUWorkloadCaches, key_of
from holdfast.gpuworkload.placement_queue import PlacementQueue
from holdfast.pods.template import MANAGED_BY
from holdfast.runtime.informer import Informers
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import utc_now
from tests.contract.pods import POOL, pod
from tests.control_plane.waiting import eventually
from tests.controllers.operating import DEFAULTS
from tests.gpuworkload.controller.lab import GPU, TIMING, GPUWorkloadLab
from tests.gpuworkload.controller.still import NAMESPACE, add_node, still_cluster


@asynccontextmanager
async def following(
    cluster: Cluster, first: str, behind: str = ""
) -> AsyncIterator[tuple[list[str], GPUWorkloadCaches]]:
    """Who hears of its place, in this order, from when the first of them is asked after; and what is known.

    Of `behind` more is written than the caches show.
    """
    heard: list[str] = []
    informers = Informers(cluster, (), metrics=Metrics(), random=Random(0))
    stores = cast("Operator", informers)  # all that is asked of it are its stores
    caches = GPUWorkloadCaches.of(stores)
    places = PlacementQueue(
        SharedLedger(stores),
        caches,
        behind=lambda key: key.name == behind,
        defaults=DEFAULTS,
        timing=TIMING,
        now=utc_now,
        random=Random(0),
    )
    places.attach(informers, lambda key: heard.append(key.name))
    await informers.sync()
    watching = asyncio.create_task(informers.run())
    observed = caches.observe(Key(NAMESPACE, first))
    assert observed is not None
    places.refresh(observed, utc_now())
    yield heard, caches
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def hears(heard: list[str], *names: str) -> None:
    async def so_far() -> list[str]:
        return list(heard)

    await eventually(so_far, lambda it: len(it) >= len(names), what=f"{names} hear")
    assert heard == list(names)
    heard.clear()


async def own_pod(cluster: Cluster, workload: str, **spec: Any) -> Pod:
    """A pod of the workload's first try, and the Job that made it."""
    template = {"spec": pod("any", POOL)["spec"]}
    job = {"metadata": {"name": f"{workload}-job"}, "spec": {"suspend": True, "template": template}}
    made = await cluster.create(JOBS, job, namespace=NAMESPACE)
    body = pod(f"{workload}-job-abcde", POOL, requests={GPU: "2"}, **spec)
    body["metadata"]["labels"] = {WORKLOAD_LABEL: workload, MANAGED_BY: "holdfast"}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": made.metadata.name, "uid": made.metadata.uid}
    body["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    return await cluster.create(PODS, body, namespace=NAMESPACE)


async def test_a_foreign_pod_with_a_workloads_labels_is_not_its_own() -> None:
    async with still_cluster() as cluster:
        own = await own_pod(cluster, "first")
        assert list(key_of(own)) == [Key(NAMESPACE, "first")]
        references = own.metadata.owner_references
        for owners in ((), (structs.replace(references[0], name="other"),)):
            foreign = structs.replace(own, metadata=structs.replace(own.metadata, owner_references=owners))
            assert list(key_of(foreign)) == []


async def test_a_workload_whose_last_pod_stops_is_queued_before_its_capacity_is_given_away() -> None:
    async with still_cluster() as cluster:
        lab = GPUWorkloadLab(cluster, NAMESPACE)
        await add_node(cluster, "a", 2)
        await lab.submit("urgent", priority=9)
        await cluster.patch_status(
            GPU_WORKLOADS, lab.key("urgent"), {"status": {"phase": "Pending", "jobName": "urgent-job"}}
        )
        last = await own_pod(cluster, "urgent", nodeName="a")
        await lab.submit("other")
        async with following(cluster, "other") as (heard, _):
            await hears(heard, "other")
            await cluster.delete(PODS, last.metadata.key, DeleteOptions(grace_period_s=0))
            await hears(heard, "urgent")


async def test_a_pod_that_is_seen_before_the_status_that_it_came_of_frees_no_capacity() -> None:
    async with still_cluster() as cluster:
        lab = GPUWorkloadLab(cluster, NAMESPACE)
        await add_node(cluster, "a", 2)
        await lab.submit("first")
        async with following(cluster, "first", behind="first") as (heard, caches):
            await hears(heard, "first")
            made = await own_pod(cluster, "first")

            async def known() -> bool:
                return caches.pods.get(made.metadata.key) is not None

            await eventually(known, bool, what="its pod is known")
            await lab.submit("second")
            await hears(heard, "second")
            await add_node(cluster, "b", 2)
            await hears(heard, "second")


async def test_one_that_is_deleted_leaves_the_line() -> None:
    async with still_cluster() as cluster:
        lab = GPUWorkloadLab(cluster, NAMESPACE)
        await lab.submit("first")
        await lab.submit("second", priority=-1)
        async with following(cluster, "first") as (heard, caches):
            await hears(heard, "first", "second")
            await lab.delete("first")

            async def known() -> bool:
                return caches.workloads.get(lab.key("first")) is not None

            await eventually(known, lambda it: not it, what="it is known to be gone")
            await add_node(cluster, "a", 2)
            await hears(heard, "second")


async def test_a_workload_that_becomes_more_important_goes_first() -> None:
    async with still_cluster() as cluster:
        lab = GPUWorkloadLab(cluster, NAMESPACE)
        await lab.submit("first")
        await lab.submit("second", priority=-1)
        async with following(cluster, "first") as (heard, _):
            await hears(heard, "first", "second")
            await lab.patch("second", priority=1)
            await hears(heard, "second")
            await add_node(cluster, "a", 2)
            await hears(heard, "second")
