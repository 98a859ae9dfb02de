"""From a worker's death to the pods that take over: holdfast, a plain Job, and Kubeflow's Training Operator.

python -m bench.restart [TRIES]

Printed are multiples of what it takes to create one pod in the same run: times are for this machine alone.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.births import PODS, Births, followed
from bench.many_jobs import say
from bench.rivals import HOLDFAST, JOB, KUBEFLOW, NOT_AT_HAND, POD, WORKERS, Rival, running, training_operator
from tests.control_plane.api import Session
from tests.control_plane.build import build
from tests.control_plane.server import ControlPlane
from tests.operator.conftest import install_kinds
from tests.operator.process import OperatorProcess

# A Job waits ten seconds before it replaces a pod: a few tries tell.
FEW = 5


class Race:
    """One control plane, and what is seen of its pods."""

    def __init__(self, plane: ControlPlane, session: Session, births: Births) -> None:
        self._plane = plane
        self._session = session
        self._births = births

    async def creates_s(self, tries: int) -> list[float]:
        """What it takes to create a pod."""
        taken = []
        for number in range(tries):
            began = time.perf_counter()
            await self._session.request("POST", PODS, {"metadata": {"name": f"bare-{number}"}, "spec": POD})
            taken.append(time.perf_counter() - began)
        return taken

    async def restarts_s(self, rival: Rival, tries: int) -> list[float]:
        """One death in each of so many jobs, one after the other, when all of them run."""
        names = [f"{rival.name}-{number}" for number in range(tries)]
        for name in names:
            await self._session.request("POST", rival.path, rival.body(name))
        for name in names:
            await self._births.until(partial(self._is_complete, rival.owner(name)))
        return [await self._restart_s(rival, name) for name in names]

    def _is_complete(self, owner: str) -> bool:
        return len(self._births.running(owner)) == WORKERS

    async def _restart_s(self, rival: Rival, name: str) -> float:
        *_, worker = self._births.running(rival.owner(name))
        heir, there = rival.heir(name), len(self._births.made[rival.heir(name)])
        await self._plane.pods.end("default", worker.metadata.name, 137)
        uid, needed = worker.metadata.uid, there + rival.reborn
        await self._births.until(lambda: uid in self._births.failed and len(self._births.made[heir]) >= needed)
        return self._births.made[heir][needed - 1] - self._births.failed[uid]


def percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def told(label: str, restarts_s: Sequence[float], unit_s: float) -> str:
    p50, p99 = (percentile(restarts_s, part) / unit_s for part in (0.5, 0.99))
    return f"  {label:<40} p50 {p50:6.0f}   p99 {p99:6.0f}   of {len(restarts_s)} tries"


async def run(tries: int) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        ControlPlane(Path(folder) / "plane", build(sys.stdout)).running() as plane,
    ):
        install_kinds(plane)
        await plane.nodes.add(4, gpus=128, cpu="512", pods=500)
        async with plane.api.session() as session, followed(plane.api) as births:
            race = Race(plane, session, births)
            unit_s = percentile(await race.creates_s(tries), 0.5)
            say(f"From a worker's death to the last pod that takes over, {WORKERS} workers, in creates of one pod:")
            with OperatorProcess(plane, Path(folder), "--no-leader-elect").running():
                say(told("holdfast, the whole gang anew", await race.restarts_s(HOLDFAST, tries), unit_s))
            say(told("a plain Job, the lost worker", await race.restarts_s(JOB, FEW), unit_s))
            await against_kubeflow(race, plane, Path(folder), tries, unit_s)


async def against_kubeflow(race: Race, plane: ControlPlane, folder: Path, tries: int, unit_s: float) -> None:
    label = "Kubeflow v1, the lost worker"
    found = training_operator()
    if found is None:
        say(f"  {label:<40} {NOT_AT_HAND}")
        return
    with running(*found, plane, folder):
        say(told(label, await race.restarts_s(KUBEFLOW, tries), unit_s))


if __name__ == "__main__":
    asyncio.run(run(*map(int, sys.argv[1:2] or ["50"])))
