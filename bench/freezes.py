"""How long a container stands still in a run, beside the kubelet's own call alone: all else happens after it runs on.

    python -m bench.freezes [--quick]

The agent is holdfast's own, with a registry; the kubelet is the scripted one of tests/node, over HTTPS. It copies an
archive instead of freezing anything, so that both sides wait for the same work. It needs Debian's docker-registry.
"""

import asyncio
import logging
import os
import shutil
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom
from statistics import median

import structlog
from aiohttp import web

from bench.images import MIB, scratch
from bench.many_jobs import say
from holdfast.cluster.resources import NAMESPACES
from holdfast.local.apiserver.server import open_cluster
from tests.checkpoints.images.archives import FILES, write_archive
from tests.checkpoints.images.registries import RunningRegistry, running_registry
from tests.node.lab import AgentLab

BACKUP, POD, CONTAINER = "nightly", "numbers", "trainer"


async def run(folder: Path, registry: RunningRegistry, size: int, rounds: int) -> None:
    archive = folder / "archive.tar"
    await asyncio.to_thread(write_archive, archive, {**FILES, "checkpoint/pages-1.img": os.urandom(size)})

    async def copies(request: web.Request, target: Path) -> web.StreamResponse:
        await asyncio.to_thread(shutil.copyfile, archive, target)
        return web.json_response({"items": [str(target)]})

    cluster = await open_cluster(None, now=lambda: datetime.now(UTC), rng=SystemRandom())
    await cluster.create(NAMESPACES, {"metadata": {"name": "bench"}})
    lab = AgentLab(cluster, registry, folder, "bench")
    await lab.start(CONTAINER, pod=POD)
    lab.kubelet.script = [copies] * (3 * rounds + 1)
    alone, again, in_runs = [], [], []
    async with lab.kubelet_serving():
        await direct_s(lab)  # the first one opens what the others find open
        await lab.begin(BACKUP, pod=POD)
        for number in range(1, rounds + 1):
            alone.append(await direct_s(lab))
            in_runs.append(await run_s(lab, number))
            again.append(await direct_s(lab))
    await cluster.close()
    share = median(2 * ours / (one + other) for ours, one, other in zip(in_runs, alone, again, strict=True))
    noise = median(max(pair) / min(pair) for pair in zip(alone, again, strict=True)) - 1
    say(f"An archive of {size // MIB} MiB, {rounds} rounds:")
    say(f"  frozen   {share:.2f} times the kubelet's own call; two such calls differ by {noise:.0%}")


async def direct_s(lab: AgentLab) -> float:
    """The kubelet's own call, and nothing else."""
    async with lab.kubelet_client() as kubelet:
        began = time.monotonic()
        path = await kubelet.checkpoint(lab.namespace, POD, CONTAINER, 600)
        took_s = time.monotonic() - began
    await asyncio.to_thread(Path(path).unlink)
    return took_s


async def run_s(lab: AgentLab, number: int) -> float:
    """What a whole run says of how long its container stood still."""
    if number > 1:
        await lab.begin_run(BACKUP, run=number, pod=POD)
    async with lab.agent():
        status = await lab.until(lambda it: it.run == number and it.phase in ("Completed", "Failed"), "it ends", BACKUP)
    assert status.phase == "Completed", status.message
    assert status.frozen_seconds is not None
    return status.frozen_seconds


def main(size: int, rounds: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with scratch(size, copies=rounds + 2) as folder:
        place = folder / "registry"
        place.mkdir()
        with running_registry(place) as registry:
            asyncio.run(run(folder, registry, size, rounds))


if __name__ == "__main__":
    main(*((64 * MIB, 3) if sys.argv[1:] == ["--quick"] else (256 * MIB, 9)))
