"""1,000 TrainingJobs of 4 workers created at once: what that costs the operator and the API server.

python -m bench.many_jobs [JOBS] [WORKERS]

Times are for this machine alone; what can be compared is memory, requests per job, and the ratio to the time that it
takes to create the TrainingJobs themselves in the same run.
"""

import asyncio
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.control_plane.build import build
from tests.control_plane.server import ControlPlane
from tests.operator.conftest import install_kinds
from tests.operator.process import OperatorProcess

PATH = "/apis/ml.example.com/v1/namespaces/default/trainingjobs"


def manifest(number: int, workers: int) -> dict[str, Any]:
    return {
        "apiVersion": "ml.example.com/v1",
        "kind": "TrainingJob",
        "metadata": {"name": f"job-{number}"},
        "spec": {
            "model": "cnn",
            "dataset": "mnist",
            "numWorkers": workers,
            "gpusPerWorker": 1,
            "podTemplate": {"annotations": {"kwok.holdfast.dev/run-for": "5s"}},
        },
    }


async def create(plane: ControlPlane, jobs: int, workers: int) -> float:
    """Seconds that it takes to create all of them."""
    began = time.perf_counter()
    async with plane.api.session() as session:
        await asyncio.gather(*(session.request("POST", PATH, manifest(number, workers)) for number in range(jobs)))
    return time.perf_counter() - began


async def states(plane: ControlPlane) -> Counter[str]:
    listing = await plane.api.request("GET", PATH)
    return Counter(item.get("status", {}).get("state", "new") for item in listing["items"])


async def counted(plane: ControlPlane, path: str) -> int:
    return len((await plane.api.request("GET", path, labelSelector="training-job"))["items"])


async def follow(plane: ControlPlane, operator: OperatorProcess, jobs: int) -> tuple[float, float]:
    """Seconds until every Job is made and until every TrainingJob is Completed."""
    began = time.perf_counter()
    made_s = 0.0
    while True:
        if not made_s and await counted(plane, "/apis/batch/v1/namespaces/default/jobs") == jobs:
            made_s = time.perf_counter() - began
        seen = await states(plane)
        say(f"{time.perf_counter() - began:6.0f} s  {memory_mb(operator):4.0f} MB  {dict(seen)}")
        if seen["Completed"] == jobs:
            return made_s, time.perf_counter() - began
        await asyncio.sleep(5)


def memory_mb(operator: OperatorProcess, field: str = "VmRSS") -> float:
    status = Path(f"/proc/{operator.pid}/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found.group(1)) / 1024 if found else 0.0


async def run(jobs: int, workers: int) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        ControlPlane(Path(folder) / "plane", build(sys.stdout)).running() as plane,
    ):
        install_kinds(plane)
        await plane.nodes.add(max(4, jobs * workers // 100), gpus=128, cpu="512", pods=500)
        with OperatorProcess(plane, Path(folder), "--no-leader-elect").running() as operator:
            idle_mb = memory_mb(operator)
            create_s = await create(plane, jobs, workers)
            made_s, done_s = await follow(plane, operator, jobs)
            say(f"{jobs} TrainingJobs of {workers} workers, all Completed; children: {await children(plane)}")
            say(f"operator memory: {idle_mb:.0f} MB idle, {memory_mb(operator, 'VmHWM'):.0f} MB at its peak")
            writes = operator.writes()
            say(f"writes per job: {len(writes) / jobs:.1f}, refused: {sum(w.answer.code >= 400 for w in writes)}")
            say(f"all Jobs made after {made_s / create_s:.1f} times what creating the TrainingJobs took")
            say(f"all Completed after {done_s / create_s:.1f} times that")


async def children(plane: ControlPlane) -> dict[str, int]:
    return {
        "Jobs": await counted(plane, "/apis/batch/v1/namespaces/default/jobs"),
        "Services": await counted(plane, "/api/v1/namespaces/default/services"),
        "ConfigMaps": await counted(plane, "/api/v1/namespaces/default/configmaps"),
    }


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    count, size = (*map(int, sys.argv[1:]), *(1000, 4)[len(sys.argv) - 1 :])
    asyncio.run(run(count, size))
