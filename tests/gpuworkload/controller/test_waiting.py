"""Who waits for GPUs, who goes first, and what everyone is told, on every engine."""

from typing import Any

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import Invalid
from holdfast.cluster.resources import NODES
from tests.contract.pool import Pool
from tests.contract.waiting import until
from tests.gpuworkload.controller.lab import GPU, GPUWorkloadLab

pytestmark = pytest.mark.usefixtures("operator")

CHEAP = {"gpu-orchestrator/cheap-node": "true"}


@pytest.mark.every_engine
async def test_a_workload_that_does_not_fit_says_what_is_missing_and_starts_when_gpus_are_free(
    lab: GPUWorkloadLab, pool: Pool
) -> None:
    await pool.add("a", resources={GPU: "2"})
    await lab.submit("first")
    await lab.until_phase("Running", "first")
    await lab.submit("second")
    waiting = await lab.until_phase("Pending", "second")
    assert waiting.message == "needs 2 GPUs on one node; no node has any free; 1st in line"
    assert not waiting.holds("Scheduled")
    assert await lab.event_reasons("second", last="Waiting") == ["Waiting"]
    assert "second-job" not in await lab.jobs()
    await pool.end(*await pool.running(1, job="first-job"))
    await lab.until_phase("Running", "second")


async def test_a_new_node_is_used_at_once(lab: GPUWorkloadLab, pool: Pool) -> None:
    await lab.submit()
    await lab.until_phase("Pending")
    node = await pool.add(resources={GPU: "2"})
    assert (await lab.until_phase("Running")).node == node


async def test_the_higher_priority_is_next_however_young(lab: GPUWorkloadLab, pool: Pool) -> None:
    await pool.add("a", resources={GPU: "2"})
    await lab.submit("first")
    await lab.until_phase("Running", "first")
    await lab.submit("old", priority=1)
    await lab.until_phase("Pending", "old")
    await lab.submit("urgent", priority=5)
    await lab.until_phase("Pending", "urgent")
    await pool.end(*await pool.running(1, job="first-job"))
    await lab.until_phase("Running", "urgent")
    assert (await lab.get("old")).status.phase == "Pending"


async def test_a_small_one_passes_a_large_one_that_does_not_fit(lab: GPUWorkloadLab, pool: Pool) -> None:
    await pool.add("a", resources={GPU: "4"})
    await lab.submit("first", 2)
    await lab.until_phase("Running", "first")
    await lab.submit("large", 4, priority=5)
    waiting = await lab.until_phase("Pending", "large")
    assert waiting.message == "needs 4 GPUs on one node; the most that a node has free is 2; 1st in line"
    await lab.submit("small", 2)
    await lab.until_phase("Running", "small")


async def test_what_can_never_fit_is_said_at_once_and_starts_on_a_larger_node(lab: GPUWorkloadLab, pool: Pool) -> None:
    await pool.add("a", resources={GPU: "8"})
    await lab.submit(gpus=16)
    never = await lab.until_phase("Pending")
    assert never.message == "needs 16 GPUs on one node, and the largest has 8: lower gpuCount or add a larger node"
    assert {each.reason for each in never.status.conditions} == {"NeverFits"}
    large = await pool.add("b", resources={GPU: "16"})
    assert (await lab.until_phase("Running")).node == large


async def test_a_workload_that_waits_may_be_made_smaller(lab: GPUWorkloadLab, pool: Pool) -> None:
    await pool.add("a", resources={GPU: "2"})
    await lab.submit(gpus=4)
    await lab.until_phase("Pending")
    await lab.patch(gpuCount=2)
    await lab.until_phase("Running")


async def test_a_cordoned_node_is_passed_over(lab: GPUWorkloadLab, pool: Pool) -> None:
    closed = await pool.add("a", resources={GPU: "8"})
    await lab.cluster.patch(NODES, Key("", closed), {"spec": {"unschedulable": True}})
    await lab.submit()
    waiting = await lab.until_phase("Pending")
    assert "every node that is large enough is closed to it: 1 cordoned" in waiting.message
    await lab.cluster.patch(NODES, Key("", closed), {"spec": {"unschedulable": False}})
    await lab.until_phase("Running")


@pytest.mark.every_engine
async def test_a_taint_that_is_not_tolerated_keeps_it_away(lab: GPUWorkloadLab, pool: Pool) -> None:
    await pool.add("a", resources={GPU: "8"}, taints=[{"key": "team", "value": "other", "effect": "NoSchedule"}])
    gpu_node = await pool.add("b", resources={GPU: "4"}, taints=[{"key": GPU, "effect": "NoSchedule"}])
    await lab.submit()
    assert (await lab.until_phase("Running")).node == gpu_node


async def test_least_loaded_takes_the_node_with_the_most_free(lab: GPUWorkloadLab, pool: Pool) -> None:
    await pool.add("a", resources={GPU: "4"})
    roomy = await pool.add("b", resources={GPU: "8"})
    await lab.submit()
    assert (await lab.until_phase("Running")).node == roomy


async def test_cost_optimized_takes_a_cheap_node_while_there_is_one(lab: GPUWorkloadLab, pool: Pool) -> None:
    roomy = await pool.add("a", resources={GPU: "8"})
    cheap = await pool.add("b", resources={GPU: "2"}, labels=CHEAP)
    await lab.submit("first", schedulingStrategy="costOptimized")
    assert (await lab.until_phase("Running", "first")).node == cheap
    await lab.submit("second", schedulingStrategy="costOptimized")
    assert (await lab.until_phase("Running", "second")).node == roomy


async def test_random_takes_any_that_fits(lab: GPUWorkloadLab, pool: Pool) -> None:
    await pool.add("a", resources={GPU: "1"})
    fitting = {await pool.add(each, resources={GPU: "8"}) for each in ("b", "c")}
    taken = set()
    for number in range(8):  # with this seed more than one of them
        await lab.submit(f"w-{number}", schedulingStrategy="random")
    for number in range(8):
        taken.add((await lab.until_phase("Running", f"w-{number}")).node)
    assert taken == fitting


async def test_a_node_that_has_no_gpus_for_pods_is_given_nothing(lab: GPUWorkloadLab, pool: Pool) -> None:
    await offer(lab, await pool.add("a", resources={GPU: "8"}), {"allocatable": {GPU: "0"}})
    await lab.submit()
    waiting = await lab.until_phase("Pending")
    assert waiting.message == "needs 2 GPUs on one node, and no node has any: add a node with GPUs"


async def test_a_node_that_claims_more_than_it_has_is_given_what_it_has(lab: GPUWorkloadLab, pool: Pool) -> None:
    await offer(lab, await pool.add("a", resources={GPU: "2"}), {"allocatable": {GPU: "64"}})
    await lab.submit("large", 4)
    assert "the largest has 2" in (await lab.until_phase("Pending", "large")).message
    await lab.submit("small", 2)
    await lab.until_phase("Running", "small")


async def offer(lab: GPUWorkloadLab, node: str, status: dict[str, Any]) -> None:
    await lab.cluster.patch_status(NODES, Key("", node), {"status": status})
    await until(
        lab.cluster,
        NODES,
        Key("", node),
        lambda it: it.status.allocatable.items() >= status["allocatable"].items(),
        "offers that",
    )


BAD: dict[str, dict[str, Any]] = {
    "no GPUs": {"gpus": 0},
    "less than none": {"gpus": -1},
    "a strategy that nobody knows": {"schedulingStrategy": "cheapest"},
    "retries below zero": {"retryPolicy": {"maxRetries": -1}},
    "no pause at all": {"retryPolicy": {"backoffSeconds": 0}},
}


@pytest.mark.parametrize("spec", BAD.values(), ids=BAD)
@pytest.mark.every_engine
async def test_bad_input_is_refused_with_the_field_that_is_wrong(lab: GPUWorkloadLab, spec: dict[str, Any]) -> None:
    wrong = {"gpus": "gpuCount"}.get(next(iter(spec)), next(iter(spec)))
    with pytest.raises(Invalid, match=wrong):
        await lab.submit(**spec)
