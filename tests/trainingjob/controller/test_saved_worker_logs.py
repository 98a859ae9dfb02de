"""What workers said is there after their attempt, on every engine."""

from typing import Any

import pytest

from holdfast.api.core.objects import ConfigMap
from holdfast.cluster.resources import CONFIG_MAPS, JOBS, TRAINING_JOBS
from holdfast.trainingjob.objects.environment import worker_log_config_map, worker_log_selector
from tests.contract.pool import Pool
from tests.contract.waiting import gone
from tests.trainingjob.controller.lab import TrainingJobLab

pytestmark = pytest.mark.usefixtures("operator")
SAID = "line 1\nline 2\nline 3\n"


async def kept(lab: TrainingJobLab) -> dict[str, ConfigMap]:
    found = (await lab.cluster.list(CONFIG_MAPS, namespace=lab.namespace, labels=worker_log_selector("bert"))).items
    return {each.metadata.name: each for each in found}


@pytest.mark.every_engine
async def test_a_restart_keeps_the_log_of_the_worker_that_failed(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    _, second = await pool.running(2, job="bert-training")
    await lab.until_state("Running")
    await pool.end(second, exit_code=7)
    await lab.until_state("Running", attempt=1)
    await gone(lab.cluster, JOBS, lab.key("bert-training"))
    logs = await kept(lab)
    # Worker 0 may be gone before anybody has looked: the Job controller stops it.
    assert {"bert-log-0-1"} <= set(logs) <= {"bert-log-0-0", "bert-log-0-1"}
    data = logs["bert-log-0-1"].data
    assert (data["log"], data["exitCode"], data["node"]) == (SAID, "7", second.spec.node_name)


async def test_a_job_that_fails_for_good_leaves_the_log_too(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(failurePolicy={"restartPolicy": "Never"})
    first, _ = await pool.running(2)
    await lab.until_state("Running")
    await pool.end(first, exit_code=1)
    await lab.until_state("Failed")
    assert list(await kept(lab)) == ["bert-log-0-0"]


async def test_of_many_attempts_worker_0_is_kept_and_the_others_of_the_last_three(
    lab: TrainingJobLab, pool: Pool
) -> None:
    await pool.add()
    await lab.submit(failurePolicy={"backoffLimit": 3}, numWorkers=1)
    job = await lab.cluster.get(TRAINING_JOBS, lab.key("bert"))
    for attempt in (0, 1):
        other = worker_log_config_map(job, 1, b"of worker 1", {}, number=attempt)
        await lab.cluster.create(CONFIG_MAPS, other, namespace=lab.namespace)
    for attempt in range(4):
        suffix = f"-{attempt}" if attempt else ""
        await pool.end(*await pool.running(1, job=f"bert-training{suffix}"), exit_code=7)
    await lab.until_state("Failed")
    assert sorted(await kept(lab)) == ["bert-log-0-0", "bert-log-1-0", "bert-log-1-1", "bert-log-2-0", "bert-log-3-0"]


async def test_a_job_that_is_not_done_in_time_leaves_the_logs_of_those_who_ran(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await pool.running(2)
    await lab.until_state("Running")
    await lab.patch(failurePolicy={"activeDeadlineSeconds": 1})
    assert (await lab.until_state("Failed")).reason("Failed") == "DeadlineExceeded"
    assert sorted(await kept(lab)) == ["bert-log-0-0", "bert-log-0-1"]


async def test_a_failure_after_a_suspension_keeps_the_log_beside_that_of_before(
    lab: TrainingJobLab, pool: Pool
) -> None:
    await pool.add()
    await lab.submit(numWorkers=1, failurePolicy={"restartPolicy": "Never"})
    (first,) = await pool.running(1)
    await lab.until_state("Running")
    await lab.patch(suspend=True)
    await lab.until_state("Suspended")
    (suspended,) = (await kept(lab)).values()
    assert (suspended.data["pod"], suspended.data["log"]) == (first.metadata.name, SAID)
    await lab.patch(suspend=False)
    (second,) = await pool.running(1, other_than=[first.metadata.uid])
    await lab.until_state("Running")
    await pool.end(second, exit_code=7)
    await lab.until_state("Failed")
    (failed,) = (await kept(lab)).values()
    assert failed.metadata.name == suspended.metadata.name
    assert (failed.data["pod"], failed.data["exitCode"]) == (second.metadata.name, "7")
    assert (failed.data["earlier"], failed.data["log"]) == (SAID, SAID)


async def test_a_log_that_can_not_be_stored_stops_nothing(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    foreign = {"metadata": {"name": "bert-log-0-0"}, "data": {"log": "theirs"}}
    await lab.cluster.create(CONFIG_MAPS, foreign, namespace=lab.namespace)
    await lab.submit()
    await pool.running(2)
    await lab.until_state("Running")
    await lab.patch(suspend=True)
    await lab.until_state("Suspended")
    found = await lab.cluster.get(CONFIG_MAPS, lab.key("bert-log-0-0"))
    assert found.data == {"log": "theirs"}


@pytest.mark.parametrize("change", [{"numWorkers": 1}, {"suspend": True}], ids=str)
async def test_of_workers_that_make_way_unbroken_worker_0_leaves_its_log(
    lab: TrainingJobLab, pool: Pool, change: dict[str, Any]
) -> None:
    await pool.add()
    await lab.submit()
    await pool.running(2)
    await lab.until_state("Running")
    await lab.patch(**change)
    await pool.running(1 if "numWorkers" in change else 0)
    await lab.until_state("Suspended" if "suspend" in change else "Running")
    assert list(await kept(lab)) == ["bert-log-0-0"]
