"""The option for registries without TLS, which the operator and the agents of nodes share."""

from typing import Annotated, TypeAlias

import typer

from holdfast.checkpoints.images.errors import InvalidImageReference
from holdfast.checkpoints.images.reference import checked_host
from holdfast.cli.errors import UsageError

PlainHttpRegistry: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        help="A registry of CheckpointBackups that is reached without TLS; may be repeated.", metavar="HOST:PORT"
    ),
]


def registry_host(text: str) -> str:
    try:
        return checked_host(text)
    except InvalidImageReference as error:
        raise UsageError(f"--plain-http-registry {text}: write its host and port, as registry.url has them") from error
