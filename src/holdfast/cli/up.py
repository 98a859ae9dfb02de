"""`holdfast up`: a cluster of this machine alone."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from holdfast.cli.failing import one_line
from holdfast.local.folder import default_folder
from holdfast.local.hardware import Hardware, survey
from holdfast.runtime.clocks import utc_now
from holdfast.runtime.logs import configure, level_from
from holdfast.runtime.signals import on_signal


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
) -> None:
    """Run jobs on this machine, without Kubernetes, until asked to stop (SIGTERM, Ctrl-C)."""
    with one_line():
        configure(level_from(os.environ))
        uvloop.run(_up(data or default_folder(os.environ), survey(gpus), limits=limits))


async def _up(data: Path, hardware: Hardware, *, limits: bool) -> None:
    # Not at the top: the other commands, and the operator's memory, have no use for a whole cluster.
    from holdfast.cluster.embedded.http import KUBECONFIG, serve
    from holdfast.local.onebox import onebox

    asked = asyncio.Event()
    async with onebox(data, hardware, limits=limits) as box, serve(box.cluster, data, now=utc_now):
        typer.echo(f"holdfast is up with {hardware}; its data is in {data}")
        typer.echo("In another terminal: holdfast apply -f job.yaml, holdfast get tj -w")
        typer.echo(f"kubectl works too: export KUBECONFIG={data / KUBECONFIG}")
        with on_signal(asked.set):
            stop = asyncio.create_task(asked.wait())
            await asyncio.wait([stop, box.operating], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
        if box.operating.done():
            await box.operating  # a part has crashed: say why
        typer.echo("stopping the workers; the jobs go on at the next start")
