"""From a GPUWorkload's creation to its Job's at 1,000 nodes: python -m bench.gpuworkloads [TRIES] [NODES]

Printed are multiples of what it takes to create one bare object in the same run: times are for this machine alone.
First one workload after the other, as a user waits for one; then as many at once as there are tries.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench.many_jobs import memory_mb, say
from bench.restart import percentile
from holdfast.api.core.objects import Job
from tests.chaos.placements import WORKLOADS, manifest
from tests.control_plane.api import Api, Session
from tests.control_plane.build import build
from tests.control_plane.changes import changes, following
from tests.control_plane.server import ControlPlane
from tests.operator.conftest import install_kinds
from tests.operator.process import OperatorProcess

JOBS = "/apis/batch/v1/namespaces/default/jobs"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
GPUS = 8


class Jobs:
    """When each Job was seen to be made, by its name."""

    def __init__(self) -> None:
        self._made: dict[str, float] = {}
        self._news = asyncio.Condition()

    async def made(self, name: str) -> float:
        async with self._news:
            await self._news.wait_for(lambda: name in self._made)
        return self._made[name]

    async def follow(self, session: Session) -> None:
        async for change in changes(session, JOBS, Job):
            async with self._news:
                self._made.setdefault(change.obj.metadata.name, time.perf_counter())
                self._news.notify_all()


@asynccontextmanager
async def followed(api: Api) -> AsyncIterator[Jobs]:
    jobs = Jobs()
    async with following(api, jobs.follow):
        yield jobs


async def create_s(session: Session, number: int) -> float:
    """What it takes to create an object that nobody looks at."""
    began = time.perf_counter()
    await session.request("POST", CONFIG_MAPS, {"metadata": {"name": f"bare-{number}"}, "data": {"a": "b"}})
    return time.perf_counter() - began


async def place_s(session: Session, jobs: Jobs, number: int) -> float:
    """From the API server's answer that the workload is there until its Job is seen."""
    body = manifest(number, 1 + number % GPUS)
    await session.request("POST", WORKLOADS, body)
    began = time.perf_counter()
    return max(0.0, await jobs.made(f"{body['metadata']['name']}-job") - began)


def told(label: str, values: Sequence[float], unit_s: float) -> str:
    p50, p99 = (percentile(values, part) / unit_s for part in (0.5, 0.99))
    return f"  {label:<26} p50 {p50:6.1f}   p99 {p99:6.1f}   of {len(values)}"


async def run(tries: int, nodes: int) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        ControlPlane(Path(folder) / "plane", build(sys.stdout)).running() as plane,
    ):
        install_kinds(plane)
        await plane.nodes.add(nodes, gpus=GPUS)
        async with plane.api.session() as session, followed(plane.api) as jobs:
            with OperatorProcess(plane, Path(folder), "--no-leader-elect").running() as operator:
                # In turns, so that both meet the same load.
                bare, alone = [], []
                for number in range(tries):
                    bare.append(await create_s(session, number))
                    alone.append(await place_s(session, jobs, number))
                unit_s = percentile(bare, 0.5)
                say(f"From a GPUWorkload's creation to its Job's at {nodes:,} nodes, in creates of a bare object:")
                say(told("bare objects, one by one", bare, unit_s))
                say(told("workloads, one by one", alone, unit_s))
                numbers = range(tries, 2 * tries)
                crowd = await asyncio.gather(*(create_s(session, number) for number in numbers))
                say(told("bare objects, all at once", crowd, unit_s))
                together = await asyncio.gather(*(place_s(session, jobs, number) for number in numbers))
                say(told("workloads, all at once", together, unit_s))
                say(f"operator memory at its peak: {memory_mb(operator, 'VmHWM'):.0f} MB")


if __name__ == "__main__":
    asyncio.run(run(*map(int, (*sys.argv[1:3], *("200", "1000")[len(sys.argv[1:3]) :]))))
