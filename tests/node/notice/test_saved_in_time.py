"""A training that saves on notice has saved before its node is gone, in each cloud."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.node.notice.agents import NODE, ONE_NOTICE, RecordingCluster, a_node, a_pod, now, watching
from tests.node.notice.clouds import DOUBLES, MetadataDouble, serving
from tests.node.notice.trainings import UID, TrainingPod
from tests.runtime.virtual import now_s, virtual

# How long before the end each cloud's notice comes.
NOTICE_S = {"Compute Engine": 30.0, "EC2": 120.0, "Azure": 30.0}


@pytest.mark.parametrize("make", DOUBLES, ids=lambda make: make.cloud)
@virtual
async def test_a_training_that_saves_on_notice_has_saved_before_the_node_goes(
    make: Callable[[], MetadataDouble], tmp_path: Path
) -> None:
    double, pod = make(), TrainingPod(tmp_path)
    async with a_node() as embedded, serving(double) as address, pod.running():
        await a_pod(embedded, "digits-0", UID)
        cluster = RecordingCluster(embedded)
        async with watching(cluster, address, port=pod.port):
            await asyncio.sleep(61.7)
            assert pod.saved_at_s == []
            noticed_at_s = now_s()
            double.preempt(now() + timedelta(seconds=NOTICE_S[double.cloud]))
            await asyncio.sleep(30)
    (saved_at_s,) = pod.saved_at_s
    assert noticed_at_s < saved_at_s < noticed_at_s + 30
    assert pod.reasons == [f"node {NODE} is about to be taken back"]
    assert sorted(cluster.writes) == ONE_NOTICE
    assert [path.name for path in (tmp_path / "volume/attempt-0").glob("checkpoint-*")] != []


@virtual
async def test_an_agent_that_restarts_within_the_notice_does_not_have_it_saved_twice(tmp_path: Path) -> None:
    double, pod = DOUBLES[0](), TrainingPod(tmp_path)
    async with a_node() as embedded, serving(double) as address, pod.running():
        await a_pod(embedded, "digits-0", UID)
        double.preempt(now())
        async with watching(embedded, address, port=pod.port):
            await asyncio.sleep(8)
        async with watching(embedded, address, port=pod.port) as agent:
            await asyncio.sleep(20)
            assert agent.count("holdfast_preemption_saves_total", result="asked") == 1
    assert len(pod.saved_at_s) == 1


@virtual
async def test_a_second_notice_after_a_withdrawn_one_is_answered_with_a_second_checkpoint(tmp_path: Path) -> None:
    double, pod = DOUBLES[2](), TrainingPod(tmp_path)
    async with (
        a_node() as embedded,
        serving(double) as address,
        pod.running(),
        watching(embedded, address, port=pod.port),
    ):
        await a_pod(embedded, "digits-0", UID)
        for _ in range(2):
            double.preempt(now() + timedelta(seconds=30))
            await asyncio.sleep(30)
            double.withdraw()
            await asyncio.sleep(30)
    assert len(pod.saved_at_s) == 2
