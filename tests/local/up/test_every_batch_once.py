"""However a training is interrupted, what it has trained in the end is what an undisturbed one has."""

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from holdfast.local import up
from holdfast.trainingjob.controller import training_job_controller
from holdfast.trainingjob.decide.snapshot import TrainingJobTiming
from tests.local.up.conftest import ROOMY
from tests.local.up.interrupted import TIMEOUT_S, WAYS, Interrupting, Plan, all_batches, plans

SEEDS, PLANS, RESTARTS = (1, 2, 3), 4, 12


async def interrupted(data: Path, plans: list[Plan], interrupting: Interrupting) -> None:
    """Every one of them to its end, on clusters of this machine that come and go."""
    running = [asyncio.create_task(interrupting.run(plan)) for plan in plans]
    try:
        while not all(task.done() for task in running):
            async with up.local_cluster(data, ROOMY, limits=False) as box:
                interrupting.begin(box)
                await interrupting.until_it_may_end(running)
            interrupting.waiting.clear()
        await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS[1:])])
async def test_killed_suspended_scaled_drained_and_taken_down_it_trains_every_batch_once(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        up, "training_job_controller", partial(training_job_controller, timing=TrainingJobTiming(retry_s=0.01))
    )
    tried, interrupting = plans(seed, PLANS, WAYS, RESTARTS), Interrupting(tmp_path / "plans")
    await interrupted(tmp_path / "data", tried, interrupting)
    for plan in tried:
        assert interrupting.outcome(plan) == all_batches(), plan


def test_the_plans_are_enough_and_of_every_way_with_shards_and_without() -> None:
    tried = [plan for seed in SEEDS for plan in plans(seed, PLANS, WAYS, RESTARTS)]
    ways = Counter((kind, plan.shards) for plan in tried for _, _, kind in plan.stops)
    assert ways.total() >= 200
    assert {kind for kind, shards in ways if shards} == {*WAYS, "restart"} - {"scale"}
    assert {kind for kind, shards in ways if not shards} == {*WAYS, "restart"}
    assert {(plan.shards, bool(plan.saves)) for plan in tried} == {(a, b) for a in (True, False) for b in (True, False)}
