"""Before workers are stopped from outside, the training is asked to save; the next attempt loses nothing.

It would never save by itself: every checkpoint here was asked for.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from holdfast.api.meta import Key
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.cluster.resources import NODES, PODS, TRAINING_JOBS
from holdfast.local.up import LocalCluster
from tests.contract.waiting import gone
from tests.control_plane.waiting import eventually
from tests.local.up.trainings import (
    FOREVER,
    NAMESPACE,
    NEVER,
    WITHIN_S,
    change,
    checkpoint,
    kept,
    start,
    status,
    until,
)
from tests.local.up.up import Up, training_job

NAME = "endless"


@pytest.fixture(scope="module")
async def endless(box: LocalCluster) -> AsyncIterator[str]:
    """A training of two workers that is under way."""
    await start(box, NAME, numWorkers=2, hyperparameters=FOREVER, checkpoint={"frequency": NEVER})
    await until(box, NAME, lambda seen: seen.current_epoch, "is under way")
    yield NAME
    await box.cluster.delete(TRAINING_JOBS, Key(NAMESPACE, NAME))
    await gone(box.cluster, TRAINING_JOBS, Key(NAMESPACE, NAME))


async def goes_on(box: LocalCluster, name: str, *, after: int, attempt: int) -> int:
    """The epoch that the attempt has gone on from, which is beyond `after`; it trains further."""

    def trains(epoch: int) -> str:
        return f"attempt {attempt} trains beyond epoch {epoch}"

    seen = await until(
        box,
        name,
        lambda it: it.restart_count == attempt and _epoch(checkpoint(it).resumed_from) > after,
        f"attempt {attempt} goes on from beyond epoch {after}",
    )
    resumed = _epoch(checkpoint(seen).resumed_from)
    await until(box, name, lambda it: it.state == "Running" and (it.current_epoch or 0) > resumed, trains(resumed))
    return resumed


def _saved(seen: TrainingJobStatus) -> int:
    return checkpoint(seen).last_epoch or 0


def _epoch(path: str | None) -> int:
    return int(path.rpartition("-")[2]) if path else 0


async def test_a_machine_that_is_about_to_be_taken_back_costs_nothing(box: LocalCluster, endless: str) -> None:
    before = await status(box, endless)
    (node,) = (await box.cluster.list(NODES)).items
    taint = {"key": "holdfast.dev/preempted", "effect": "NoSchedule"}
    await box.cluster.patch(NODES, node.metadata.key, {"spec": {"taints": [taint]}})
    saved = await until(box, endless, lambda it: _saved(it) > _saved(before), "has saved")
    await box.cluster.patch(NODES, node.metadata.key, {"spec": {"taints": []}})
    ahead = await until(box, endless, lambda it: (it.current_epoch or 0) > _saved(saved), "goes on")
    assert ahead.restart_count == before.restart_count
    assert checkpoint(ahead).resumed_from == checkpoint(before).resumed_from


async def test_suspended_scaled_and_drained_it_goes_on_where_it_was(box: LocalCluster, endless: str) -> None:
    before = _saved(await status(box, endless))
    await change(box, endless, suspend=True)
    await until(box, endless, lambda it: it.state == "Suspended", "is suspended")
    await change(box, endless, suspend=False)
    suspended = await goes_on(box, endless, after=before, attempt=0)

    await change(box, endless, numWorkers=1)
    scaled = await goes_on(box, endless, after=suspended, attempt=1)

    (worker,) = (await box.cluster.list(PODS, namespace=NAMESPACE, labels="holdfast.dev/attempt=1")).items
    await box.cluster.delete(PODS, worker.metadata.key)
    await goes_on(box, endless, after=scaled, attempt=2)
    restarts = (await status(box, endless)).restarts
    assert restarts
    assert (restarts.infrastructure, restarts.application) == (1, 0)


async def test_a_job_that_is_deleted_saves_before_its_workers_stop(box: LocalCluster, data: Path) -> None:
    job = await start(box, "deleted", numWorkers=2, hyperparameters=FOREVER, checkpoint={"frequency": NEVER})
    await until(box, "deleted", lambda seen: seen.current_epoch, "is under way")
    await box.cluster.delete(TRAINING_JOBS, Key(NAMESPACE, "deleted"))

    async def left() -> int:
        return len((await box.cluster.list(PODS, namespace=NAMESPACE, labels="training-job=deleted")).items)

    await eventually(left, lambda pods: not pods, what="its workers are gone", within_s=WITHIN_S)
    volume = data / "volumes" / NAMESPACE / "deleted-checkpoints" / NAMESPACE / "deleted"
    assert await kept(str(volume / job.metadata.uid), {})


def _trains(seen: TrainingJobStatus, *, attempt: int, beyond: int) -> bool:
    return seen.restart_count == attempt and (seen.current_epoch or 0) > beyond


async def test_every_way_to_stop_holdfast_saves_and_lengthens_no_wait(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", log=tmp_path / "up.log")
    volume = up.data / "volumes" / NAMESPACE / "job-checkpoints" / NAMESPACE / "job"
    job = training_job(
        "job", [], model="mlp", dataset="synthetic", hyperparameters=FOREVER, checkpoint={"frequency": NEVER}
    )
    saved = 0

    async def seen() -> TrainingJobStatus:
        document = json.loads(await asyncio.to_thread(lambda: up.holdfast("get", "tj", "job", "-o", "json").stdout))
        return msgspec.convert(document.get("status", {}), TrainingJobStatus)

    ways = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    for attempt, number in enumerate(ways):
        with up.running():
            if not attempt:
                assert up.holdfast("apply", "-f", "-", given=job).returncode == 0
            trains = partial(_trains, attempt=attempt, beyond=saved)
            status = await eventually(seen, trains, what=f"attempt {attempt} trains", within_s=WITHIN_S)
            assert (status.quick_restarts, status.next_retry_time) == (0, None)
            assert up.pid
            os.kill(up.pid, number)
            await eventually(lambda: asyncio.to_thread(lambda: up.exit_code), lambda code: code is not None, what="end")
            assert up.exit_code == 0
        (own,) = volume.iterdir()
        newest = (await kept(str(own), {}))[0]
        assert (newest.attempt, newest.epoch > saved) == (attempt, True)
        saved = newest.epoch
