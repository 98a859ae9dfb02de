"""The commands of `holdfast checkpoints` and their options. What a command does is imported when it runs."""

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from holdfast.cli.options import CheckpointOutputFormat, ContextOption, KubeconfigOption, NamespaceOption

if TYPE_CHECKING:
    from holdfast.cli.checkpoints.actions import Action

JobArgument: TypeAlias = Annotated[str, typer.Argument(help="A TrainingJob: NAME or tj/NAME.", metavar="JOB")]
ImageOption: TypeAlias = Annotated[
    str,
    typer.Option(help="Of the pod that looks at a volume; by default the image of the job's own sidecar."),
]
EndpointOption: TypeAlias = Annotated[
    str,
    typer.Option(help="Of the object store, where you reach it in another way than the pods do.", metavar="URL"),
]

checkpoints = typer.Typer(name="checkpoints", no_args_is_help=True)


@checkpoints.callback()
def help_text() -> None:
    """What a job has saved: list it, check that it is whole, delete what is old, or download it."""


@checkpoints.command("list")
def list_(
    job: JobArgument,
    output: Annotated[
        CheckpointOutputFormat, typer.Option("--output", "-o", help="wide, yaml or json.")
    ] = CheckpointOutputFormat.TABLE,
    no_headers: Annotated[bool, typer.Option("--no-headers", help="Without the line of column names.")] = False,
    image: ImageOption = "",
    endpoint: EndpointOption = "",
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Show a job's checkpoints, newest first, which one a restart would go on from, and which is the best."""
    from holdfast.cli.checkpoints.actions import list_checkpoints

    action = list_checkpoints(output, headers=not no_headers)
    _run(action, job, image, endpoint, namespace, kubeconfig, context)


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
    from holdfast.cli.checkpoints.actions import verify_checkpoints

    _run(verify_checkpoints(epoch), job, image, endpoint, namespace, kubeconfig, context)


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
    from holdfast.cli.checkpoints.actions import prune_checkpoints

    _run(prune_checkpoints(keep, delete=yes), job, image, endpoint, namespace, kubeconfig, context)


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
    from holdfast.cli.checkpoints.actions import download_checkpoint

    _run(download_checkpoint(epoch, output, best=best), job, image, endpoint, namespace, kubeconfig, context)


@checkpoints.command("inside", hidden=True)
def run_in_pod_command(folder: Path, request: Annotated[str, typer.Argument()] = "") -> None:
    """In the pod that such a command has started: the same work in JSON lines. Without a request, only wait."""
    if not request:
        signal.pause()
    from holdfast.cli.checkpoints.actions import run_in_pod

    run_in_pod(folder, request)


@checkpoints.command("hand-out", hidden=True)
def send_command(folder: Path, epoch: int | None = None, best_by: str | None = None) -> None:
    """In the same pod: give a checkpoint to whoever has started this."""
    from msgspec import convert

    from holdfast.cli.checkpoints.operations import Which
    from holdfast.cli.checkpoints.transfer import send_checkpoint
    from holdfast.cli.errors import errors_as_one_line

    with errors_as_one_line():
        which = convert({"epoch": epoch, "best_by": best_by}, Which)
        send_checkpoint(folder, which, sys.stdin.buffer, sys.stdout.buffer)


def _run(
    action: "Action", job: str, image: str, endpoint: str, namespace: str, kubeconfig: Path | None, context: str
) -> None:
    from holdfast.cli.checkpoints.access import AccessOptions
    from holdfast.cli.checkpoints.actions import run_action
    from holdfast.cli.session import ClusterOptions

    cluster = ClusterOptions(kubeconfig=kubeconfig, context=context, namespace=namespace)
    run_action(action, job, AccessOptions(image=image, endpoint=endpoint), cluster)
