"""The runtime on a real API server."""

import asyncio
import os
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from holdfast.api.core.objects import ConfigMap
from holdfast.api.meta import Key
from holdfast.cluster.errors import NotLeading
from holdfast.cluster.kubernetes.client import KubernetesCluster, connect
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.cluster.resources import CONFIG_MAPS, LEASES
from holdfast.runtime.events import Recorder
from holdfast.runtime.informer import Informers
from holdfast.runtime.leader import Elector, LeaseTiming
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.process import utc_now
from holdfast.runtime.read_your_writes import WriteTracker
from tests.control_plane.server import ControlPlane, FreshControlPlane
from tests.control_plane.waiting import eventually
from tests.runtime.things import running, until

ADMINISTRATORS = "system:masters"


@asynccontextmanager
async def connected(plane: ControlPlane) -> AsyncIterator[KubernetesCluster]:
    cluster = connect(load_config(str(plane.kubeconfig)), rng=Random(1), now=utc_now)
    try:
        yield cluster
    finally:
        await cluster.close()


@pytest.fixture
async def cluster(control_plane: ControlPlane) -> AsyncIterator[KubernetesCluster]:
    async with connected(control_plane) as cluster:
        yield cluster


def config_map(name: str, **data: str) -> dict[str, object]:
    return {"metadata": {"name": name, "labels": {"tick": "yes"}}, "data": data}


async def test_a_store_follows_the_server_and_knows_its_own_writes(cluster: KubernetesCluster, namespace: str) -> None:
    informers = Informers(cluster, (namespace,), metrics=Metrics(), random=Random(1))
    store = informers.store(CONFIG_MAPS, {"colour": lambda obj: (obj.data.get("colour", ""),)}, labels="tick=yes")
    writer = WriteTracker(cluster, informers)
    key = Key(namespace, "a")
    await cluster.create(CONFIG_MAPS, config_map("a", colour="red"), namespace=namespace)
    await informers.sync()
    assert [obj.metadata.key for obj in store.by("colour", "red")] == [key]
    async with running(informers.run()):
        for colour in ("green", "blue", "blue"):
            await writer.for_key(key).patch(CONFIG_MAPS, key, {"data": {"colour": colour}})
            await until(lambda: not writer.is_cache_stale(key), "the store shows what was written")
            assert [obj.metadata.key for obj in store.by("colour", colour)] == [key]
        await writer.for_key(key).delete(CONFIG_MAPS, key)
        await until(lambda: not writer.is_cache_stale(key), "the store shows that it is gone")
        assert store.list() == []
        assert informers.unready_reasons() == []


async def test_a_store_catches_up_after_the_server_and_its_data_were_away(
    fresh_control_plane: FreshControlPlane,
) -> None:
    plane = fresh_control_plane()
    metrics = Metrics()
    async with connected(plane) as cluster:
        informers = Informers(cluster, (), metrics=metrics, random=Random(1))
        store = informers.store(CONFIG_MAPS, labels="tick=yes")
        for name in "ab":
            await cluster.create(CONFIG_MAPS, config_map(name), namespace="default")
        await informers.sync()
        async with running(informers.run()) as following:
            plane.apiserver.kill()
            plane.etcd.kill()
            await until(informers.unready_reasons, "trouble is seen")
            plane.etcd.start()
            plane.apiserver.start()
            await cluster.delete(CONFIG_MAPS, Key("default", "a"))
            await cluster.create(CONFIG_MAPS, config_map("c"), namespace="default")
            await until(lambda: {obj.metadata.name for obj in store} == {"b", "c"}, "the store is up to date")
            assert informers.unready_reasons() == []
            assert not following.done()


def elector(cluster: KubernetesCluster, namespace: str, name: str, timing: LeaseTiming) -> Elector:
    return Elector(
        cluster, Key(namespace, "lease"), name, now=utc_now, random=Random(name), metrics=Metrics(), timing=timing
    )


async def test_the_server_takes_a_lease_through_its_life(cluster: KubernetesCluster, namespace: str) -> None:
    one, two = (elector(cluster, namespace, name, LeaseTiming(retry_s=0.2)) for name in ("one", "two"))
    await one.acquire()
    one.require_leadership()
    async with running(one.hold()):
        waiting = asyncio.create_task(two.acquire())
        lease = await cluster.get(LEASES, Key(namespace, "lease"))
        renewed = await eventually(
            lambda: cluster.get(LEASES, Key(namespace, "lease")),
            lambda now: now.spec.renew_time != lease.spec.renew_time,
            what="a renewal",
        )
        assert (renewed.spec.holder_identity, renewed.spec.lease_transitions) == ("one", 0)
        assert renewed.spec.acquire_time == lease.spec.acquire_time
        assert not waiting.done()
    await one.release()
    await waiting
    two.require_leadership()
    with pytest.raises(NotLeading):
        one.require_leadership()
    taken = await cluster.get(LEASES, Key(namespace, "lease"))
    assert (taken.spec.holder_identity, taken.spec.lease_transitions) == ("two", 1)
    await one.release()  # which it no longer holds
    assert (await cluster.get(LEASES, Key(namespace, "lease"))).spec.holder_identity == "two"


async def test_a_lease_whose_holder_died_is_taken_over(cluster: KubernetesCluster, namespace: str) -> None:
    timing = LeaseTiming(duration_s=3, renew_deadline_s=2.0, retry_s=0.2)
    one, two = (elector(cluster, namespace, name, timing) for name in ("one", "two"))
    await one.acquire()
    await two.acquire()
    with pytest.raises(NotLeading):
        one.require_leadership()
    assert (await cluster.get(LEASES, Key(namespace, "lease"))).spec.holder_identity == "two"


async def test_kubectl_shows_events_with_their_counts(
    cluster: KubernetesCluster, control_plane: ControlPlane, namespace: str
) -> None:
    recorder = Recorder(cluster, instance="test", now=utc_now, metrics=Metrics())
    obj: ConfigMap = await cluster.create(CONFIG_MAPS, config_map("a"), namespace=namespace)
    writing = asyncio.create_task(recorder.run())
    for number in range(3):
        recorder.warning(CONFIG_MAPS, obj, "Stockout", "no machine in any zone")
        recorder.normal(CONFIG_MAPS, obj, "Told", f"number {number}")
    recorder.stop()
    await writing
    described = control_plane.kubectl("describe", "configmap", "a", f"--namespace={namespace}")
    assert "(x3 over" in described
    assert "no machine in any zone" in described
    listed = control_plane.kubectl("get", "events", f"--namespace={namespace}", "--output=wide")
    assert sum("configmap/a" in line and "holdfast" in line for line in listed.splitlines()) == 4


@asynccontextmanager
async def ticker(plane: ControlPlane, namespace: str, user: str) -> AsyncIterator[Process]:
    """A `tests.runtime.ticker` that writes under a user of its own, so that the audit log tells who wrote."""
    kubeconfig = plane.user(user, ADMINISTRATORS)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.runtime.ticker",
        str(kubeconfig),
        namespace,
        user,
        cwd=Path(__file__).parents[2],
        stdout=asyncio.subprocess.DEVNULL,
        stderr=PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def ticks(plane: ControlPlane, user: str, since: int) -> int:
    written = (request for request in plane.audit(since, user=user) if request.is_write)
    return sum(request.target.resource == "configmaps" for request in written)


async def test_a_leader_that_was_paused_beyond_its_lease_writes_nothing_and_ends(
    cluster: KubernetesCluster, control_plane: ControlPlane, namespace: str
) -> None:
    one, two = (f"{name}-{secrets.token_hex(4)}" for name in ("one", "two"))
    beginning = control_plane.audit_position()
    await cluster.create(CONFIG_MAPS, config_map("counter"), namespace=namespace)
    async with AsyncExitStack() as processes:
        first = await processes.enter_async_context(ticker(control_plane, namespace, one))
        await until(lambda: ticks(control_plane, one, beginning) > 3, "the first writes")
        await processes.enter_async_context(ticker(control_plane, namespace, two))
        os.kill(first.pid, signal.SIGSTOP)
        await until(lambda: ticks(control_plane, two, beginning) > 3, "the second has taken over")
        position = control_plane.audit_position()
        os.kill(first.pid, signal.SIGCONT)
        assert first.stderr
        told = (await first.stderr.read()).decode()
        assert await first.wait() == 1
        assert told.startswith(("LeaseLost: ", "NotLeading: "))
        await until(lambda: ticks(control_plane, two, position) > 3, "the second goes on")
        assert [request for request in control_plane.audit(position, user=one) if request.is_write] == []


async def test_a_leader_that_is_asked_to_stop_hands_over_at_once(
    cluster: KubernetesCluster, control_plane: ControlPlane, namespace: str
) -> None:
    one, two = (f"{name}-{secrets.token_hex(4)}" for name in ("one", "two"))
    beginning = control_plane.audit_position()
    await cluster.create(CONFIG_MAPS, config_map("counter"), namespace=namespace)
    async with AsyncExitStack() as processes:
        first = await processes.enter_async_context(ticker(control_plane, namespace, one))
        await until(lambda: ticks(control_plane, one, beginning) > 3, "the first writes")
        await processes.enter_async_context(ticker(control_plane, namespace, two))
        first.terminate()
        assert await first.wait() == 0
        lease = await cluster.get(LEASES, Key(namespace, "ticker"))
        assert lease.spec.holder_identity in (None, "", two)
        await until(lambda: ticks(control_plane, two, beginning) > 3, "the second has taken over")
