"""Preemptions and stockouts on command, by annotations."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from random import Random

from holdfast.api.meta import Key
from holdfast.api.provisionedinstance import machine_name
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import EVENTS, PROVISIONED_INSTANCES, SPOT_INSTANCE_VMS
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.local.preemptions import preemption_requests, sold_out_zones, template_zones
from holdfast.providers.errors import InvalidMachine, MachineEnded, MachineNotFound, ProviderError
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator
from tests.providers.local.nodes import now
from tests.runtime.virtual import virtual

KEY = Key("default", "m0")


class Preemptions:
    """What a provider was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float | None]] = []
        self.error: ProviderError | None = None

    async def preempt(self, name: str, *, notice_s: float | None = None) -> datetime:
        self.asked.append((name, notice_s))
        if self.error is not None:
            raise self.error
        return now()


@asynccontextmanager
async def operating(provider: Preemptions) -> AsyncIterator[tuple[EmbeddedCluster, Operator]]:
    cluster = await open_cluster(None, now=now, rng=Random(1))
    operator = Operator(cluster, identity="test", now=now, random=Random(1), metrics=Metrics())
    operator.add(preemption_requests(operator, provider))
    task = asyncio.create_task(operator.run())
    try:
        yield cluster, operator
    finally:
        operator.stop()
        await task
        await cluster.close()


async def instance(cluster: EmbeddedCluster, *, asked: str | None = None) -> str:
    annotations = {} if asked is None else {"holdfast.dev/preempt": asked}
    body = {"metadata": {"name": KEY.name, "annotations": annotations}, "spec": {"vmRef": {"name": "t4"}}}
    made = await cluster.create(PROVISIONED_INSTANCES, body, namespace=KEY.namespace)
    await asyncio.sleep(1)
    return machine_name(made.metadata.uid)


async def annotate(cluster: EmbeddedCluster, asked: str) -> None:
    await cluster.patch(PROVISIONED_INSTANCES, KEY, {"metadata": {"annotations": {"holdfast.dev/preempt": asked}}})
    await asyncio.sleep(1)


async def warnings(cluster: EmbeddedCluster) -> list[str]:
    await asyncio.sleep(5)
    return [f"{each.reason}: {each.message}" for each in (await cluster.list(EVENTS, namespace="default")).items]


@virtual
async def test_the_annotation_has_the_machine_taken_back() -> None:
    provider = Preemptions()
    async with operating(provider) as (cluster, _):
        name = await instance(cluster)
        assert provider.asked == []
        await annotate(cluster, "1m30s")
        await annotate(cluster, "")
        assert provider.asked == [(name, 90.0), (name, None)]


@virtual
async def test_a_machine_that_is_not_made_yet_is_taken_back_when_it_is() -> None:
    provider = Preemptions()
    provider.error = MachineNotFound("there is no machine")
    async with operating(provider) as (cluster, _):
        name = await instance(cluster, asked="30s")
        provider.error = None
        await cluster.patch_status(PROVISIONED_INSTANCES, KEY, {"status": {"state": "RUNNING"}})
        await asyncio.sleep(1)
        assert provider.asked == [(name, 30.0), (name, 30.0)]
        provider.error = MachineEnded("it is gone", preempted=True)
        await cluster.patch_status(PROVISIONED_INSTANCES, KEY, {"status": {"state": "TERMINATED"}})
        assert await warnings(cluster) == []


@virtual
async def test_what_can_not_be_done_is_said_in_an_event() -> None:
    provider = Preemptions()
    async with operating(provider) as (cluster, _):
        await instance(cluster, asked="soon")
        assert provider.asked == []
        provider.error = InvalidMachine("machine m0 is an on-demand machine")
        await annotate(cluster, "30s")
        assert sorted(await warnings(cluster)) == [
            "InvalidPreemption: annotation holdfast.dev/preempt is 'soon': write a duration, such as 30s, or nothing",
            "InvalidPreemption: machine m0 is an on-demand machine",
        ]


async def template(cluster: EmbeddedCluster, name: str, zone: str, *zones: str, sold_out: str = "") -> None:
    spec: JSON = {
        "vmImage": "any",
        "gcp": {"project": "my-project", "zone": zone, "machineType": "n1-standard-4"},
        "zones": list(zones),
    }
    annotations = {"holdfast.dev/sold-out": sold_out} if sold_out else {}
    body = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
    await cluster.create(SPOT_INSTANCE_VMS, body, namespace="default")


@virtual
async def test_zones_are_those_of_the_templates_and_their_annotations_say_which_are_sold_out() -> None:
    cluster = await open_cluster(None, now=now, rng=Random(1))
    operator = Operator(cluster, identity="test", now=now, random=Random(1), metrics=Metrics())
    templates = operator.store(SPOT_INSTANCE_VMS)
    zones, sold_out = template_zones(templates), sold_out_zones(templates)
    task = asyncio.create_task(operator.run())
    await template(cluster, "t4", "us-central1-a", "us-central1-b", sold_out=" us-central1-b,us-central1-c ,")
    await template(cluster, "l4", "europe-west4-a")
    await asyncio.sleep(1)
    assert sorted(zones()) == ["europe-west4-a", "us-central1-a", "us-central1-b"]
    assert sorted(sold_out()) == ["us-central1-b", "us-central1-c"]
    operator.stop()
    await task
    await cluster.close()
