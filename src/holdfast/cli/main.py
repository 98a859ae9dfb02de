"""The command `holdfast`.

Only the options of the requested command are imported, so that help, version and completion are fast.
"""

import importlib
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer
from typer._click.core import Context
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script
from typer.core import TyperCommand, TyperGroup, TyperOption

from holdfast import __version__

# Summary by command; a command is in cli/commands.py, or in the module that MODULES names.
COMMANDS = {
    "up": "Run jobs on this machine, without Kubernetes.",
    "demo": "Train a small model here, and show how it goes.",
    "apply": "Create or change objects.",
    "create": "Create namespaces, ConfigMaps and Secrets.",
    "get": "Show objects in a table, or whole.",
    "describe": "Show all about objects, with their events.",
    "logs": "Print what the workers of a job have written.",
    "wait": "Wait for a condition of objects.",
    "delete": "Delete objects.",
    "checkpoints": "List, verify, prune or download checkpoints.",
    "restore": "Start a pod from the images of a CheckpointBackup.",
    "preempt": "Take a machine of `holdfast up` back, for a drill.",
    "doctor": "Say what a cluster lacks, and what to do.",
    "validate": "Check manifests as the API server would.",
    "crds": "Print the CustomResourceDefinitions.",
    "operator": "Run the controllers on a cluster.",
    "node": "Save containers of CheckpointBackups on one node.",
    "sidecar": "Run beside a training, in a worker's pod.",
}
INTERNAL = ("sidecar",)
MODULES = {
    "checkpoints": "holdfast.cli.checkpoints.commands",
    "node": "holdfast.cli.node",
    "operator": "holdfast.cli.operator",
    "sidecar": "holdfast.cli.sidecar",
}
COMPLETE = "_HOLDFAST_COMPLETE"


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


class _LightCommand(TyperCommand):
    def get_help_option(self, ctx: Context) -> TyperOption | None:
        return _with_default(super().get_help_option(ctx))


class _LightGroup(TyperGroup):
    def get_help_option(self, ctx: Context) -> TyperOption | None:
        return _with_default(super().get_help_option(ctx))


def _with_default(option: TyperOption | None) -> TyperOption | None:
    """The option --help with a default: for one without a default, typer loads pydantic in every command."""
    if option is not None:
        option.default = False
    return option


def main() -> None:
    completion_init()
    completion_words = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    arguments = completion_words.split()[1:] if COMPLETE in os.environ else sys.argv[1:]
    build(next((argument for argument in arguments if not argument.startswith("-")), ""))(prog_name="holdfast")


def build(name: str) -> typer.Typer:
    """The command line with one loaded command; the other commands have only a summary."""
    app = typer.Typer(
        name="holdfast",
        cls=_LightGroup,
        help="Machine-learning training on Kubernetes that survives the loss of its machines.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # its tables cut the names of options where the terminal is narrow
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for command, summary in COMMANDS.items():
        found = _load(command) if command == name else _not_loaded
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=command, short_help=summary)
        else:
            app.command(command, cls=_LightCommand, short_help=summary, hidden=command in INTERNAL)(found)
    app.command(short_help="Print a script that completes commands.")(completion)
    app.command(cls=_LightCommand)(version)
    return app


def _load(command: str) -> typer.Typer | Callable[..., None]:
    module = importlib.import_module(MODULES.get(command, "holdfast.cli.commands"))
    found: typer.Typer | Callable[..., None] = getattr(module, command)
    return found


def _not_loaded() -> None:
    """Stands for a command that was not asked for."""


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


def _options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def completion(shell: Annotated[Shell, typer.Argument(help="Of which shell.")]) -> None:
    """Print a script for completion: source <(holdfast completion bash)"""
    typer.echo(get_completion_script(prog_name="holdfast", complete_var=COMPLETE, shell=shell))


def version() -> None:
    """Print the version."""
    typer.echo(__version__)
