"""The command `holdfast`."""

import typer

from holdfast import __version__
from holdfast.cli.crds import crds
from holdfast.cli.operator import operator
from holdfast.cli.validate import validate

app = typer.Typer(
    name="holdfast",
    help="Machine-learning training on Kubernetes that survives the loss of its machines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


app.command()(crds)
app.command()(validate)
app.command()(operator)
