"""Options that several commands have. `--help` and completion import this module, so it needs typer alone."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

KubeconfigOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        help="Which cluster; by default $KUBECONFIG, a running `holdfast up`, ~/.kube/config.",
        metavar="F",
    ),
]
ContextOption: TypeAlias = Annotated[str, typer.Option("--context", help="Which context of the kubeconfig.")]
NamespaceOption: TypeAlias = Annotated[
    str, typer.Option("--namespace", "-n", help="Which namespace; by default the context's.")
]
FilenamesOption: TypeAlias = Annotated[
    list[str],
    typer.Option("--filename", "-f", help="File, folder, or - for standard input. May be given several times."),
]


class OutputFormat(StrEnum):
    TABLE = ""
    WIDE = "wide"
    YAML = "yaml"
    JSON = "json"
    NAME = "name"


class CheckpointOutputFormat(StrEnum):
    TABLE = ""
    WIDE = "wide"
    YAML = "yaml"
    JSON = "json"
