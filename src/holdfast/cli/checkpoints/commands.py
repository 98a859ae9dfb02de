"""The commands of `holdfast checkpoints`."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from msgspec import MsgspecError, convert

from holdfast.api.checkpoint import Checkpoint
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.checkpoints.errors import Corrupt
from holdfast.checkpoints.manifest import CheckpointName
from holdfast.cli.checkpoints import messages
from holdfast.cli.checkpoints.access import AccessOptions, CheckpointAccess, open_access
from holdfast.cli.checkpoints.messages import (
    CheckpointInfo,
    EndOfStream,
    ListRequest,
    PruneRequest,
    PruneResult,
    RequestFailed,
    VerifyRequest,
    VerifyResult,
    Which,
)
from holdfast.cli.checkpoints.operations import run_request
from holdfast.cli.checkpoints.output import document, prune_line, size, table, verified_lines
from holdfast.cli.checkpoints.transfer import send_checkpoint
from holdfast.cli.checkpoints.view import VolumeView
from holdfast.cli.get import to_json, to_yaml
from holdfast.cli.resource_args import find_kind
from holdfast.cli.session import (
    FAILED,
    INTERRUPTED,
    ClusterOptions,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    Session,
    UsageError,
    errors_as_one_line,
    printable,
    run,
)
from holdfast.cluster.resources import TRAINING_JOBS
from holdfast.errors import HoldfastError
from holdfast.trainingjob.objects.names import attempt
from holdfast.trainingjob.objects.storage import best_by

# No worker writes in these states; the workers of a suspended job are gone, too.
IDLE_STATES = ("Completed", "Failed", "Suspended")


class Output(StrEnum):
    TABLE = ""
    WIDE = "wide"
    YAML = "yaml"
    JSON = "json"


JobArgument: TypeAlias = Annotated[str, typer.Argument(help="A TrainingJob: NAME or tj/NAME.", metavar="JOB")]
ImageOption: TypeAlias = Annotated[
    str,
    typer.Option(help="Of the pod that looks at a volume; by default the image of the job's own sidecar."),
]
EndpointOption: TypeAlias = Annotated[
    str,
    typer.Option(help="Of the object store, where you reach it in another way than the pods do.", metavar="URL"),
]
Command: TypeAlias = Callable[[Session, TrainingJob, CheckpointAccess], Awaitable[int]]

checkpoints = typer.Typer(name="checkpoints", no_args_is_help=True)


@checkpoints.callback()
def about() -> None:
    """What a job has saved: list it, check that it is whole, delete what is old, or download it."""


@checkpoints.command("list")
def list_(
    job: JobArgument,
    output: Annotated[Output, typer.Option("--output", "-o", help="wide, yaml or json.")] = Output.TABLE,
    no_headers: Annotated[bool, typer.Option("--no-headers", help="Without the line of column names.")] = False,
    image: ImageOption = "",
    endpoint: EndpointOption = "",
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Show a job's checkpoints, newest first, which one a restart would go on from, and which is the best."""

    async def command(session: Session, found: TrainingJob, access: CheckpointAccess) -> int:
        request = ListRequest(
            job=found.metadata.uid, attempt=attempt(found), running=_is_running(found), by=best_by(found)
        )
        async with aclosing(access.run_request(request)) as steps:
            saved = [fact async for fact in steps if isinstance(fact, CheckpointInfo)]
        if output in (Output.YAML, Output.JSON):
            whole = document(found.metadata.name, access.address, saved)
            typer.echo(to_yaml(whole) if output is Output.YAML else to_json(whole))
        elif saved:
            wide = output is Output.WIDE
            typer.echo("\n".join(table(saved, session.now(), wide=wide, headers=not no_headers)))
        else:
            _print_none(found, access)
        return 0

    _run(command, job, image, endpoint, namespace, kubeconfig, context)


@checkpoints.command()
def verify(
    job: JobArgument,
    epoch: Annotated[int | None, typer.Option(help="Only those of this epoch.", min=0)] = None,
    image: ImageOption = "",
    endpoint: EndpointOption = "",
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Read every file and compare its digest; ends with 1 if something is damaged."""

    async def command(_session: Session, found: TrainingJob, access: CheckpointAccess) -> int:
        damaged, count = False, 0
        async with aclosing(access.run_request(VerifyRequest(epoch=epoch))) as steps:
            async for fact in steps:
                if isinstance(fact, VerifyResult):
                    typer.echo("\n".join(verified_lines(fact)))
                    damaged, count = damaged or bool(fact.damage), count + 1
        if not count:
            _print_none(found, access)
        return FAILED if damaged else 0

    _run(command, job, image, endpoint, namespace, kubeconfig, context)


@checkpoints.command()
def prune(
    job: JobArgument,
    keep: Annotated[int, typer.Option(help="How many of the newest valid ones stay.", min=1)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete; without it, only show what would go.")] = False,
    image: ImageOption = "",
    endpoint: EndpointOption = "",
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Delete old checkpoints, never the best or one that a restart needs. What was set aside as damaged stays, too."""

    async def command(_session: Session, found: TrainingJob, access: CheckpointAccess) -> int:
        _check_retention(found, keep)
        request = PruneRequest(job=found.metadata.uid, attempt=attempt(found), keep=keep, delete=yes, by=best_by(found))
        gone, freed = 0, 0
        async with aclosing(access.run_request(request)) as steps:
            async for fact in steps:
                if isinstance(fact, PruneResult):
                    typer.echo(prune_line(fact))
                    gone, freed = gone + 1, freed + (fact.saved.bytes or 0)
        if not gone:
            typer.echo(
                printable(f"Nothing to delete: {found.metadata.name} has no more than {keep} in {access.address}.")
            )
        elif yes:
            typer.echo(f"{gone} deleted, {size(freed)} in all.")
        else:
            typer.echo(f"Nothing was deleted yet: {gone} would go, {size(freed)} in all. Say --yes to delete.")
        return 0

    _run(command, job, image, endpoint, namespace, kubeconfig, context)


@checkpoints.command()
def download(
    job: JobArgument,
    epoch: Annotated[int | None, typer.Option(help="Which epoch's; by default the newest valid one's.", min=0)] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The one with the highest accuracy (targetAccuracy) or the lowest loss.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder to make of it; by default JOB-epoch-N.")
    ] = None,
    image: ImageOption = "",
    endpoint: EndpointOption = "",
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Copy one checkpoint into a new folder here, every digest checked."""

    async def command(_session: Session, found: TrainingJob, access: CheckpointAccess) -> int:
        if best and epoch is not None:
            raise UsageError("--best and --epoch name different checkpoints: use one of them")
        made: dict[CheckpointName, Path] = {}

        def target(name: CheckpointName) -> Path:
            made[name] = _free(output or Path(f"{found.metadata.name}-epoch-{name.epoch}"))
            if sys.stderr.isatty():
                typer.echo(f"downloading {name} …", err=True)
            # The path of the user may contain links; unpacking follows no links.
            return Path(os.path.realpath(made[name].parent)) / made[name].name

        if output is not None:
            _free(output)
        which = Which(epoch=epoch, best_by=best_by(found) if best else None)
        try:
            name, manifest = await access.download(which, target)
        except Corrupt as error:
            damaged = next(iter(made), "it")
            raise Corrupt(
                f"nothing was downloaded, {damaged} is damaged: {error}; choose another with --epoch"
            ) from None
        typer.echo(f"{name}: {size(manifest.size)} in {len(manifest.files)} files, each as it was saved: {made[name]}")
        return 0

    _run(command, job, image, endpoint, namespace, kubeconfig, context)


@checkpoints.command("inside", hidden=True)
def run_in_pod_command(folder: Path, request: Annotated[str, typer.Argument()] = "") -> None:
    """In the pod that such a command has started: the same work, told in lines of JSON. Without any, just be there."""
    if not request:
        signal.pause()
    try:
        for fact in run_request(VolumeView(folder), messages.decode_request(request)):
            typer.echo(messages.encode(fact))
        typer.echo(messages.encode(EndOfStream()))
    except (HoldfastError, MsgspecError, OSError) as error:
        typer.echo(messages.encode(RequestFailed(message=str(error))))
        raise typer.Exit(FAILED) from None


@checkpoints.command("hand-out", hidden=True)
def send_command(folder: Path, epoch: int | None = None, best_by: str | None = None) -> None:
    """In the same pod: give a checkpoint to whoever has started this."""
    with errors_as_one_line():
        which = convert({"epoch": epoch, "best_by": best_by}, Which)
        send_checkpoint(folder, which, sys.stdin.buffer, sys.stdout.buffer)


def _run(
    command: Command, name: str, image: str, endpoint: str, namespace: str, kubeconfig: Path | None, context: str
) -> None:
    options = AccessOptions(image=image, endpoint=endpoint)

    async def with_access(session: Session) -> int:
        job = await session.cluster.get(TRAINING_JOBS, Key(session.namespace, _job_name(name)))
        try:
            async with open_access(session, job, options) as access:
                return await command(session, job, access)
        except asyncio.CancelledError:
            # A thread can't be cancelled, and the interpreter would wait for it, as for the rest of a download.
            sys.stdout.flush()
            os._exit(INTERRUPTED)

    run(ClusterOptions(kubeconfig=kubeconfig, context=context, namespace=namespace), with_access)


def _job_name(what: str) -> str:
    kind, slash, name = what.rpartition("/")
    if slash and find_kind(kind).resource.kind != "TrainingJob":
        raise UsageError(f"{what}: only TrainingJobs have checkpoints: write NAME or tj/NAME")
    return name


def _print_none(job: TrainingJob, access: CheckpointAccess) -> None:
    typer.echo(printable(f"{job.metadata.name} has no checkpoint yet in {access.address}."), err=True)


def _is_running(job: TrainingJob) -> bool:
    return not (job.status and job.status.state in IDLE_STATES)


def _check_retention(job: TrainingJob, keep: int) -> None:
    retention = (job.spec.checkpoint or Checkpoint()).retention
    if _is_running(job) and keep < retention:
        state = (job.status and job.status.state) or "Pending"
        raise UsageError(
            f"{job.metadata.name} is {state} and keeps {retention} itself: use --keep {retention} or more, "
            "lower spec.checkpoint.retention, or suspend the job first"
        )


def _free(folder: Path) -> Path:
    if os.path.lexists(folder):
        raise UsageError(f"{folder} is there already, and nothing is overwritten: choose another with --output")
    return folder
