"""`holdfast up`: a single-node cluster on this host."""

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
from holdfast.local.host import Hardware, default_folder, detect_hardware
from holdfast.runtime.process import configure, level_from, on_signal, utc_now
from holdfast.times import parse_optional_time

# The kinds whose events are printed.
REPORTED_KINDS = ("TrainingJob", "GPUWorkload")


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
    # Not at the top: other commands and the operator should not load a whole cluster.
    from holdfast.cluster.login import KUBECONFIG
    from holdfast.local.apiserver.http.app import serve
    from holdfast.local.up import local_cluster

    stop_requested = asyncio.Event()
    # Until the workers have stopped: a second signal must not end this process before the workers have saved.
    with on_signal(stop_requested.set):
        async with local_cluster(data, hardware, limits=limits) as local, serve(local.cluster, data, now=utc_now):
            typer.echo(f"holdfast is up with {hardware}; its data is in {data}")
            command = this_command()
            typer.echo(f"In another terminal: {command} apply -f job.yaml, {command} get tj -w")
            typer.echo(f"kubectl works too: export KUBECONFIG={data / KUBECONFIG}")
            printing = asyncio.create_task(_print_events(local.cluster))
            stop = asyncio.create_task(stop_requested.wait())
            await asyncio.wait([stop, local.operating, printing], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if printing.done():
                await printing
            printing.cancel()
            if local.operating.done():
                await local.operating  # a part has crashed: raise its error
            typer.echo("stopping the workers; the jobs go on at the next start")


async def _print_events(cluster: Cluster) -> None:
    """Print a line for each event of a job or workload: 14:13 mine: running with 2 workers."""
    printer = StatusPrinter()
    async for step in follow(cluster, find_kind("events").resource):
        for line in printer.lines(step):
            typer.echo(line)


class StatusPrinter:
    """Selects new events by their counts. A repeated event raises the count of an existing event."""

    def __init__(self) -> None:
        self._counts: dict[str, int] | None = None

    def lines(self, step: Listing[RawObject] | Event[RawObject]) -> list[str]:
        """The lines for new events. The run that wrote the events of the first listing has printed them already."""
        if isinstance(step, Listing):
            counts = {each.metadata.uid: _count(each) for each in step.items}
            before, self._counts = self._counts, counts
            new_events = [] if before is None else [each for each in step.items if self._is_new(each, before)]
        elif step.object is None or self._counts is None:
            return []
        elif step.change is Change.DELETED:  # events expire after an hour
            self._counts.pop(step.object.metadata.uid, None)
            return []
        else:
            new_events = [step.object] if self._is_new(step.object, self._counts) else []
            self._counts[step.object.metadata.uid] = _count(step.object)
        return [line for each in new_events if (line := event_line(each.document))]

    @staticmethod
    def _is_new(event: RawObject, counts: dict[str, int]) -> bool:
        return _count(event) > counts.get(event.metadata.uid, 0)


def _count(event: RawObject) -> int:
    return int(event.document.get("count") or 1)


def event_line(event: JSON) -> str:
    """The line for an event; empty for events of the parts of a job."""
    involved = event.get("involvedObject") or {}
    if involved.get("kind") not in REPORTED_KINDS:
        return ""
    time = (parse_optional_time(event.get("lastTimestamp")) or utc_now()).astimezone()
    namespace = involved.get("namespace", "")
    name = involved.get("name", "") if namespace in ("", "default") else f"{namespace}/{involved.get('name', '')}"
    return printable(f"{time:%H:%M} {name}: {' '.join(str(event.get('message', '')).split())}")
