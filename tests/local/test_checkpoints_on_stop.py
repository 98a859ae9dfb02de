"""Before workers are stopped from outside, the training is asked to save; the next attempt loses nothing.

It would never save by itself: every checkpoint here was asked for.
"""

from collections.abc import AsyncIterator

import pytest

from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJobStatus
from holdfast.cluster.resources import NODES, PODS, TRAINING_JOBS
from holdfast.local.onebox import Onebox
from tests.contract.waiting import gone
from tests.local.trainings import FOREVER, NAMESPACE, NEVER, change, checkpoint, start, status, until

NAME = "endless"


@pytest.fixture(scope="module")
async def endless(box: Onebox) -> AsyncIterator[str]:
    """A training of two workers that is under way."""
    await start(box, NAME, numWorkers=2, hyperparameters=FOREVER, checkpoint={"frequency": NEVER})
    await until(box, NAME, lambda seen: seen.current_epoch, "is under way")
    yield NAME
    await box.cluster.delete(TRAINING_JOBS, Key(NAMESPACE, NAME))
    await gone(box.cluster, TRAINING_JOBS, Key(NAMESPACE, NAME))


async def goes_on(box: Onebox, name: str, *, after: int, attempt: int) -> int:
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


async def test_a_machine_that_is_about_to_be_taken_back_costs_nothing(box: Onebox, endless: str) -> None:
    before = await status(box, endless)
    (node,) = (await box.cluster.list(NODES)).items
    taint = {"key": "holdfast.dev/preempted", "effect": "NoSchedule"}
    await box.cluster.patch(NODES, node.metadata.key, {"spec": {"taints": [taint]}})
    saved = await until(box, endless, lambda it: _saved(it) > _saved(before), "has saved")
    await box.cluster.patch(NODES, node.metadata.key, {"spec": {"taints": []}})
    ahead = await until(box, endless, lambda it: (it.current_epoch or 0) > _saved(saved), "goes on")
    assert ahead.restart_count == before.restart_count
    assert checkpoint(ahead).resumed_from == checkpoint(before).resumed_from


async def test_suspended_scaled_and_drained_it_goes_on_where_it_was(box: Onebox, endless: str) -> None:
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
