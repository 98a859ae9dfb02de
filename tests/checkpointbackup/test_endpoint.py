"""Agents find the operator that leads: its address and certificate are in a ConfigMap, written when they differ."""

from collections.abc import AsyncIterator
from random import Random

import pytest
from structlog.testing import capture_logs

from holdfast.api.credentials import ENDPOINT_CONFIG_MAP
from holdfast.api.meta import Key
from holdfast.api.reports import FILE
from holdfast.checkpointbackup.endpoint import CHECK_S, RETRY_S, EndpointPublisher
from holdfast.cluster.resources import CONFIG_MAPS, NAMESPACES
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.runtime.process import utc_now

KEY = Key("agents", ENDPOINT_CONFIG_MAP)


class Enough(Exception):
    """Ends a publisher that would go on for ever."""


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    cluster = await open_cluster(None, now=utc_now, rng=Random(0))
    await cluster.create(NAMESPACES, {"metadata": {"name": "agents"}})
    try:
        yield cluster
    finally:
        await cluster.close()


def publisher(cluster: EmbeddedCluster, text: str | None, namespace: str = "agents") -> EndpointPublisher:
    return EndpointPublisher(cluster, namespace, lambda: text)


async def version(cluster: EmbeddedCluster) -> str:
    return (await cluster.get(CONFIG_MAPS, KEY)).metadata.resource_version


async def test_the_leader_writes_it_once_and_a_new_leader_writes_its_own(cluster: EmbeddedCluster) -> None:
    await publisher(cluster, "first").publish()
    made = await version(cluster)
    await publisher(cluster, "first").publish()
    assert await version(cluster) == made
    await publisher(cluster, "second").publish()
    assert (await cluster.get(CONFIG_MAPS, KEY)).data == {FILE: "second"}


async def test_what_others_have_put_there_stays(cluster: EmbeddedCluster) -> None:
    body = {"metadata": {"name": KEY.name, "labels": {"team": "a"}}, "data": {"note": "x"}}
    await cluster.create(CONFIG_MAPS, body, namespace=KEY.namespace)
    await publisher(cluster, "first").publish()
    found = await cluster.get(CONFIG_MAPS, KEY)
    assert (found.data, found.metadata.labels) == ({"note": "x", FILE: "first"}, {"team": "a"})


async def test_nothing_is_written_before_the_server_is_open(cluster: EmbeddedCluster) -> None:
    await publisher(cluster, None).publish()
    assert not (await cluster.list(CONFIG_MAPS, namespace="agents", fields=f"metadata.name={KEY.name}")).items


async def test_it_is_looked_at_again_and_restored(cluster: EmbeddedCluster) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise Enough
        await cluster.delete(CONFIG_MAPS, KEY)

    with pytest.raises(Enough):
        await EndpointPublisher(cluster, "agents", lambda: "first", sleep=sleep).run()
    assert pauses == [CHECK_S, CHECK_S]
    assert (await cluster.get(CONFIG_MAPS, KEY)).data == {FILE: "first"}


async def test_a_refusal_is_logged_and_tried_again_soon(cluster: EmbeddedCluster) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise Enough
        await cluster.create(NAMESPACES, {"metadata": {"name": "later"}})

    with capture_logs() as logs, pytest.raises(Enough):
        await EndpointPublisher(cluster, "later", lambda: "first", sleep=sleep).run()
    assert pauses == [RETRY_S, CHECK_S]
    assert [line["event"] for line in logs] == ["agents can't learn where the operator is"]
