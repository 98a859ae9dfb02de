"""The agent dies before and after every step of a run, and the next one cleans up and goes on."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.cluster.resources import NAMESPACES
from holdfast.local.apiserver.server import EmbeddedCluster
from tests.checkpoints.images.registries import RunningRegistry
from tests.node.dying import StepFuse, mortal, until_dead_or
from tests.node.lab import AgentLab

FOREIGN = "checkpoint-numbers_elsewhere-trainer-2026-01-02T03:04:05Z.tar"
# What a run of one container does at least.
LEAST_STEPS = 14
AT_ONCE = 12


class CrashCase(NamedTuple):
    """What is saved, and which steps are fatal: all, or those that the first case has not."""

    containers: tuple[str, ...] = ("trainer",)
    spec: dict[str, Any] = {}
    steps: tuple[str, ...] = ()


CASES = {
    "one container": CrashCase(),
    "two containers, compressed": CrashCase(
        ("trainer", "logger"),
        {"compression": "zstd"},
        ("kubelet checkpoint", "archives compress", "registry push_blob", "registry put_manifest"),
    ),
}


async def new_lab(
    cluster: EmbeddedCluster, registry: RunningRegistry, folder: Path, name: str, case: CrashCase
) -> AgentLab:
    await asyncio.to_thread(folder.mkdir)
    await cluster.create(NAMESPACES, {"metadata": {"name": f"team-{name}"}})
    lab = AgentLab(cluster, registry, folder, f"team-{name}", node=f"node-{name}")
    (lab.checkpoints / FOREIGN).write_bytes(b"of somebody else")
    await lab.start(*case.containers)
    return lab


async def die(lab: AgentLab, fuse: StepFuse, case: CrashCase) -> None:
    """One run with an agent that dies of the fuse."""
    await lab.begin(**case.spec)
    async with lab.killed_agent(lambda parts: mortal(parts, fuse)) as running:
        await until_dead_or(fuse, running, lab.ended())


async def goes_on(lab: AgentLab, point: str) -> None:
    """The next agent ends the run, leaves nothing behind, and the run after it completes."""
    async with lab.agent():
        assert (await lab.ended()).phase == "Completed", point
        await lab.begin_run(run=2)
        status = await lab.until(lambda status: status.run == 2 and status.phase == "Completed", f"run 2 after {point}")
    assert lab.leftovers() == [FOREIGN], point
    found = await lab.pulled()
    assert {labels["dev.holdfast.run"] for labels in found.values()} == {"1", "2"}, point
    assert status.built_images[0].image_name.rpartition(":")[2] in found, point


@pytest.mark.timeout(280)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_an_agent_that_dies_at_any_step_leaves_nothing_and_the_next_one_goes_on(
    cluster: EmbeddedCluster, registry_server: RunningRegistry, tmp_path: Path, case: CrashCase
) -> None:
    make, fuse = partial(new_lab, cluster, registry_server, case=case), StepFuse()
    undisturbed = await make(tmp_path / "undisturbed", "undisturbed")
    async with undisturbed.kubelet_serving():
        await die(undisturbed, fuse, case)
    steps = fuse.steps
    assert len(steps) >= LEAST_STEPS
    assert {"kubelet checkpoint", "credentials credential", "registry put_manifest", "journal remove"} <= set(steps)
    assert set(case.steps) <= set(steps)
    assert undisturbed.leftovers() == [FOREIGN]
    places = asyncio.Semaphore(AT_ONCE)

    async def one(step: int, before: bool) -> None:
        point = f"{'before' if before else 'after'} step {step}, {steps[step]}"
        async with places:
            lab = await make(tmp_path / f"{step}-{before}", f"{step}-{before}".lower())
            async with lab.kubelet_serving():
                fuse = StepFuse(step, before=before)
                await die(lab, fuse, case)
                assert fuse.is_dead, point
                await goes_on(lab, point)

    async with asyncio.TaskGroup() as points:
        for step, name in enumerate(steps):
            for before in (True, False) if not case.steps or name in case.steps else ():
                points.create_task(one(step, before))
