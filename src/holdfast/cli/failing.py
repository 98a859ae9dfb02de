"""How a command fails: one line, no traceback, and nothing of what it quotes commands the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from holdfast.errors import HoldfastError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130


class UsageError(HoldfastError):
    """The command line, or a file that it names, makes no sense."""


@contextmanager
def errors_as_one_line() -> Iterator[None]:
    """Say what went wrong and end with 1, or with 2 when the command line was at fault."""
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
    """On one line, and without what would command a terminal."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
