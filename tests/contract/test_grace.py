"""The time that a deleted pod is given: it can become shorter, never longer."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.protocol import DeleteOptions
from holdfast.cluster.resources import PODS
from tests.control_plane.waiting import eventually

from .engine import Engine
from .pods import pod
from .pool import Pool
from .waiting import gone


@pytest.fixture
async def leaving(engine: Engine, pool: Pool) -> Pod:
    """A pod that was given 300 s to end, on a machine that does nothing about it."""
    node = await pool.add()
    key = Key(pool.name, "one")
    await pool.cluster.create(PODS, pod("one", pool.name, terminationGracePeriodSeconds=300), namespace=pool.name)
    await pool.running(1)
    await engine.break_node(node)
    await pool.cluster.delete(PODS, key)
    asked = await pool.cluster.get(PODS, key)
    assert asked.metadata.deletion_grace_period_seconds == 300
    return asked


def moment(it: Pod) -> datetime:
    return datetime.fromisoformat(it.metadata.deletion_timestamp)


async def clock() -> datetime:
    return datetime.now(UTC)


@pytest.mark.every_engine
async def test_a_shorter_time_counts_from_the_first_request(pool: Pool, leaving: Pod) -> None:
    # Times are written in whole seconds.
    second_after = moment(leaving) - timedelta(seconds=299)
    await eventually(clock, lambda time: time >= second_after, what="the next second")
    await pool.cluster.delete(PODS, leaving.metadata.key, DeleteOptions(uid=leaving.metadata.uid, grace_period_s=200))
    hurried = await pool.cluster.get(PODS, leaving.metadata.key)
    assert hurried.metadata.deletion_grace_period_seconds == 200
    assert moment(leaving) - moment(hurried) == timedelta(seconds=100)
    await pool.cluster.delete(PODS, leaving.metadata.key, DeleteOptions(grace_period_s=0))


@pytest.mark.parametrize("grace_s", [None, 300, 3600])
async def test_a_longer_time_changes_nothing(pool: Pool, leaving: Pod, grace_s: int | None) -> None:
    await pool.cluster.delete(PODS, leaving.metadata.key, DeleteOptions(grace_period_s=grace_s))
    still = await pool.cluster.get(PODS, leaving.metadata.key)
    assert (moment(still), still.metadata.deletion_grace_period_seconds) == (moment(leaving), 300)
    await pool.cluster.delete(PODS, leaving.metadata.key, DeleteOptions(grace_period_s=0))


async def test_no_time_ends_it_at_once(pool: Pool, leaving: Pod) -> None:
    await pool.cluster.delete(PODS, leaving.metadata.key, DeleteOptions(grace_period_s=0))
    assert (await pool.cluster.list(PODS, namespace=pool.name)).items == ()


async def test_a_pod_without_time_is_still_held_by_its_finalizer(engine: Engine, pool: Pool) -> None:
    node = await pool.add()
    body = pod("one", pool.name)
    body["metadata"]["finalizers"] = ["holdfast.dev/held"]
    key = (await pool.cluster.create(PODS, body, namespace=pool.name)).metadata.key
    await pool.running(1)
    await engine.break_node(node)
    await pool.cluster.delete(PODS, key, DeleteOptions(grace_period_s=0))
    held = await pool.cluster.get(PODS, key)
    assert held.metadata.deletion_grace_period_seconds == 0
    assert held.status.phase == "Running"
    await pool.cluster.patch(PODS, key, {"metadata": {"finalizers": []}})
    await gone(pool.cluster, PODS, key)
