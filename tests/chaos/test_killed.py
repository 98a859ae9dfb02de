"""The operator dies again and again while its jobs restart."""

import asyncio
from random import Random

from tests.chaos.faults import Faults
from tests.chaos.gangs import submit, until_completed
from tests.chaos.history import History, recording
from tests.chaos.invariants import overlaps
from tests.control_plane.server import FreshControlPlane
from tests.control_plane.waiting import eventually
from tests.operator.conftest import StartOperator, install_kinds
from tests.operator.process import OperatorProcess

GANGS, KILLS = 20, 10
SEED = 7


async def test_an_operator_killed_amid_restarts_goes_on_where_it_was(
    fresh_control_plane: FreshControlPlane, start_operator: StartOperator
) -> None:
    plane = fresh_control_plane()
    install_kinds(plane)
    await plane.nodes.add(4, gpus=8)
    operator = start_operator(plane, "--no-leader-elect", "--retry-backoff=0.2", "--retry-backoff-cap=1")
    random = Random(SEED)
    async with plane.api.session() as session, recording(plane.api, History()) as history:
        await submit(session, GANGS, workers=2, gpus=1, run_for="5s")
        async with asyncio.TaskGroup() as group:
            trouble = group.create_task(Faults(session, history, random).take_pods(200, every_s=0.3))
            for _ in range(KILLS):
                await die(operator, after_writes=random.randint(1, 12))
            trouble.cancel()
        await until_completed(history, GANGS, within_s=240)
        assert overlaps(history.changes) == []
        restarts = [job.status.restart_count for job in history.jobs.values() if job.status]
        assert sum(restarts) >= KILLS, "too few restarts to be killed amid"
        assert {job.status.state for job in history.of_jobs() if job.status} & {"Failed"} == set()


async def die(operator: OperatorProcess, *, after_writes: int) -> None:
    """Wherever in a restart that is."""
    since = operator.plane.audit_position()
    await eventually(
        lambda: asyncio.to_thread(operator.writes, since),
        lambda seen: len(seen) >= after_writes,
        what=f"{after_writes} writes",
    )
    operator.kill()
    await asyncio.to_thread(operator.start)
