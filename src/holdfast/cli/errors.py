"""How a command fails: with one line, without traceback, and without control characters for the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from holdfast.errors import HoldfastError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130


class UsageError(HoldfastError):
    """The command line, or a file on the command line, is invalid."""


@contextmanager
def errors_as_one_line() -> Iterator[None]:
    """Print an error as one line and exit with 1, or with 2 for a usage error."""
    try:
        yield
    except HoldfastError as error:
        print_error(str(error))
        raise typer.Exit(MISUSED if isinstance(error, UsageError) else FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def print_error(text: str) -> None:
    typer.echo(f"holdfast: {printable(' '.join(text.split()))}", err=True)


def printable(text: str) -> str:
    """The text with line breaks and terminal control characters escaped."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
