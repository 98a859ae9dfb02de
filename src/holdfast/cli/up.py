"""`holdfast up`: a cluster of this machine alone."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from holdfast.cli.resource_args import find_kind, this_command
from holdfast.cli.session import errors_as_one_line, follow, printable
from holdfast.cluster.protocol import JSON, Change, Cluster, Event, Listing
from holdfast.cluster.resources import RawObject
from holdfast.local.up import Hardware, default_folder, detect_hardware
from holdfast.runtime.process import configure, level_from, on_signal, utc_now
from holdfast.times import parse_optional_time

# The kinds whose events are told.
TOLD = ("TrainingJob", "GPUWorkload")


def up(
    gpus: Annotated[
        int | None, typer.Option(help="How many GPUs to offer; by default those that nvidia-smi finds.", min=0)
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder for everything: objects, logs, volumes. $HOLDFAST_DATA by default.")
    ] = None,
    limits: Annotated[
        bool, typer.Option(help="Hold jobs to their CPU and memory limits, where the kernel lets us (control groups).")
    ] = True,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what each part logs as well; $LOG_LEVEL says how much.")
    ] = False,
) -> None:
    """Run jobs on this machine, without Kubernetes, until asked to stop (Ctrl-C, SIGTERM, a closed terminal)."""
    with errors_as_one_line():
        configure(level_from({"LOG_LEVEL": "info" if verbose else "warning", **os.environ}))
        uvloop.run(_up(data or default_folder(os.environ), detect_hardware(gpus), limits=limits))


async def _up(data: Path, hardware: Hardware, *, limits: bool) -> None:
    # Not at the top: the other commands, and the operator's memory, have no use for a whole cluster.
    from holdfast.cluster.login import KUBECONFIG
    from holdfast.local.apiserver.http.app import serve
    from holdfast.local.up import local_cluster

    asked = asyncio.Event()
    # Until the workers have stopped: a signal that comes meanwhile must not end this process before they have saved.
    with on_signal(asked.set):
        async with local_cluster(data, hardware, limits=limits) as box, serve(box.cluster, data, now=utc_now):
            typer.echo(f"holdfast is up with {hardware}; its data is in {data}")
            command = this_command()
            typer.echo(f"In another terminal: {command} apply -f job.yaml, {command} get tj -w")
            typer.echo(f"kubectl works too: export KUBECONFIG={data / KUBECONFIG}")
            telling = asyncio.create_task(_tell(box.cluster))
            stop = asyncio.create_task(asked.wait())
            await asyncio.wait([stop, box.operating, telling], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if telling.done():
                await telling
            telling.cancel()
            if box.operating.done():
                await box.operating  # a part has crashed: say why
            typer.echo("stopping the workers; the jobs go on at the next start")


async def _tell(cluster: Cluster) -> None:
    """A line for each event of a job or workload: 14:13 mine: running with 2 workers."""
    told = StatusPrinter()
    async for step in follow(cluster, find_kind("events").resource):
        for line in told.lines(step):
            typer.echo(line)


class StatusPrinter:
    """How often each event was told. A repeat raises the count of an event that is there."""

    def __init__(self) -> None:
        self._counts: dict[str, int] | None = None

    def lines(self, step: Listing[RawObject] | Event[RawObject]) -> list[str]:
        """What is new. The events of the first listing were told by the run that wrote them."""
        if isinstance(step, Listing):
            counts = {each.metadata.uid: _count(each) for each in step.items}
            before, self._counts = self._counts, counts
            news = [] if before is None else [each for each in step.items if self._is_new(each, before)]
        elif step.object is None or self._counts is None:
            return []
        elif step.change is Change.DELETED:  # an event goes after an hour
            self._counts.pop(step.object.metadata.uid, None)
            return []
        else:
            news = [step.object] if self._is_new(step.object, self._counts) else []
            self._counts[step.object.metadata.uid] = _count(step.object)
        return [line for each in news if (line := sentence(each.document))]

    @staticmethod
    def _is_new(event: RawObject, counts: dict[str, int]) -> bool:
        return _count(event) > counts.get(event.metadata.uid, 0)


def _count(event: RawObject) -> int:
    return int(event.document.get("count") or 1)


def sentence(event: JSON) -> str:
    """What an event tells the user of this machine; empty for what concerns only the parts of a job."""
    about = event.get("involvedObject") or {}
    if about.get("kind") not in TOLD:
        return ""
    at = (parse_optional_time(event.get("lastTimestamp")) or utc_now()).astimezone()
    namespace = about.get("namespace", "")
    name = about.get("name", "") if namespace in ("", "default") else f"{namespace}/{about.get('name', '')}"
    return printable(f"{at:%H:%M} {name}: {' '.join(str(event.get('message', '')).split())}")
