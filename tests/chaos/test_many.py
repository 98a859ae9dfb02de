"""A hundred gangs on too few nodes, while pods and nodes are taken away from under them."""

import asyncio
from collections.abc import Awaitable
from functools import partial
from random import Random

import pytest

from holdfast.api.trainingjob_status import RestartCounts
from holdfast.trainingjob.objects import names
from tests.chaos.faults import Faults
from tests.chaos.gangs import JOBS, belongings, submit, until_completed
from tests.chaos.history import History, recording
from tests.chaos.invariants import busiest, orphans, overbooked, overlaps
from tests.control_plane.api import Session
from tests.control_plane.server import FreshControlPlane
from tests.control_plane.waiting import eventually
from tests.operator.conftest import StartOperator, install_kinds

GANGS, WORKERS = 100, 4
# Room for a third of them at a time.
NODES, GPUS = 17, 8
SEED = 4
# kwok does not always keep a node alive that comes back under its name: its pods go sooner than after five minutes.
IMPATIENT = ("--default-not-ready-toleration-seconds=10", "--default-unreachable-toleration-seconds=10")
QUICK = ("--no-leader-elect", "--stuck-after=5", "--retry-backoff=0.5", "--retry-backoff-cap=2")


@pytest.mark.timeout(900)  # for a machine that does other things as well
async def test_a_hundred_gangs_end_well_whatever_is_taken_from_them(
    fresh_control_plane: FreshControlPlane, start_operator: StartOperator
) -> None:
    plane = fresh_control_plane(flags={"kube-apiserver": IMPATIENT})
    install_kinds(plane)
    machines = await plane.nodes.add(NODES, gpus=GPUS)
    start_operator(plane, *QUICK)
    async with plane.api.session() as session, recording(plane.api, History()) as history:
        await submit(session, GANGS, workers=WORKERS, gpus=1, run_for="6s")
        await disturb(Faults(session, history, Random(SEED)), machines)
        await until_completed(history, GANGS, within_s=600)
        judge(history)
        await nothing_is_left_over(session, history)


async def disturb(faults: Faults, machines: list[str]) -> None:
    """Pods all the time, a node now and then: one stays away until Kubernetes itself gives its pods up."""
    async with asyncio.TaskGroup() as group:
        for number, machine in enumerate(machines[:8]):
            group.create_task(after(2.0 + 3 * number, faults.take_node(machine, 70.0 if number == 0 else 4.0)))
        group.create_task(faults.take_pods(80, every_s=0.25))


async def after(seconds: float, what: Awaitable[object]) -> None:
    await asyncio.sleep(seconds)
    await what


def judge(history: History) -> None:
    assert overlaps(history.changes) == []
    assert overbooked(history.changes) == []
    seen = history.of_jobs()
    assert {job.metadata.name for job in seen if job.status and job.status.state == "Failed"} == set()
    assert any("GPU" in (job.status.message or "") for job in seen if job.status), "nobody had to wait for room"
    assert busiest(history.changes) > NODES * GPUS / 2
    restarted = {job.metadata.name for job in seen if job.status and job.status.restart_count}
    assert len(restarted) > GANGS / 5, "too little was taken away to prove anything"
    blamed = {job.status.failure_reason for job in seen if job.status and is_blamed(job.status.restarts)}
    assert blamed == set(), "a training was blamed for what was taken from it"


def is_blamed(restarts: RestartCounts | None) -> bool:
    return restarts is not None and restarts != RestartCounts(infrastructure=restarts.infrastructure)


async def nothing_is_left_over(session: Session, history: History) -> None:
    living = {job.metadata.uid for job in history.jobs.values()}
    there = await belongings(session)
    assert orphans(there, living) == []
    attempts = {each["metadata"]["name"] for each in there if each["kind"] == "Job"}
    assert attempts == {names.job_name(job) for job in history.jobs.values()}
    await session.request("DELETE", JOBS)
    await eventually(partial(belongings, session), lambda left: not left, what="nothing of ours is left", within_s=60)
