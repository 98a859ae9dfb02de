"""What workers said is there after their attempt, on every engine."""

import pytest

from holdfast.api.builtin import ConfigMap
from holdfast.cluster.resources import CONFIG_MAPS, JOBS
from holdfast.workloads.trainingjob.last_logs import kept_logs
from tests.contract.pool import Pool
from tests.contract.waiting import gone
from tests.controllers.lab import Lab

pytestmark = pytest.mark.usefixtures("operator")
SAID = "line 1\nline 2\nline 3\n"


async def kept(lab: Lab) -> dict[str, ConfigMap]:
    found = (await lab.cluster.list(CONFIG_MAPS, namespace=lab.namespace, labels=kept_logs("bert"))).items
    return {each.metadata.name: each for each in found}


async def test_a_restart_keeps_the_log_of_the_worker_that_failed(lab: Lab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    _, second = await pool.running(2, job="bert-training")
    await lab.until_state("Running")
    await pool.end(second, exit_code=7)
    await lab.until_state("Running", attempt=1)
    await gone(lab.cluster, JOBS, lab.key("bert-training"))
    logs = await kept(lab)
    assert list(logs) == ["bert-log-0-1"]
    data = logs["bert-log-0-1"].data
    assert (data["log"], data["exitCode"], data["node"]) == (SAID, "7", second.spec.node_name)


async def test_a_job_that_fails_for_good_leaves_the_log_too(lab: Lab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(failurePolicy={"restartPolicy": "Never"})
    first, _ = await pool.running(2)
    await lab.until_state("Running")
    await pool.end(first, exit_code=1)
    await lab.until_state("Failed")
    assert list(await kept(lab)) == ["bert-log-0-0"]


async def test_of_many_attempts_the_last_three_are_kept(lab: Lab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(failurePolicy={"backoffLimit": 4}, numWorkers=1)
    for attempt in range(5):
        suffix = f"-{attempt}" if attempt else ""
        await pool.end(*await pool.running(1, job=f"bert-training{suffix}"), exit_code=7)
    await lab.until_state("Failed")
    assert sorted(await kept(lab)) == ["bert-log-2-0", "bert-log-3-0", "bert-log-4-0"]


async def test_a_job_that_is_not_done_in_time_leaves_the_logs_of_those_who_ran(lab: Lab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await pool.running(2)
    await lab.until_state("Running")
    await lab.change({"failurePolicy": {"activeDeadlineSeconds": 1}})
    assert (await lab.until_state("Failed")).reason("Failed") == "DeadlineExceeded"
    assert sorted(await kept(lab)) == ["bert-log-0-0", "bert-log-0-1"]


@pytest.mark.parametrize("change", [{"numWorkers": 1}, {"suspend": True}])
async def test_workers_that_make_way_unbroken_leave_no_log(lab: Lab, pool: Pool, change: dict[str, object]) -> None:
    await pool.add()
    await lab.submit()
    await pool.running(2)
    await lab.until_state("Running")
    await lab.change(change)
    await pool.running(1 if "numWorkers" in change else 0)
    await lab.until_state("Suspended" if "suspend" in change else "Running")
    assert await kept(lab) == {}
