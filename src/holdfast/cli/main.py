"""The command `holdfast`."""

import typer

from holdfast import __version__
from holdfast.cli.apply import apply
from holdfast.cli.checkpoints.commands import checkpoints
from holdfast.cli.crds import crds
from holdfast.cli.delete import delete
from holdfast.cli.demo import demo
from holdfast.cli.describe import describe
from holdfast.cli.get import get
from holdfast.cli.logs import logs
from holdfast.cli.operator import operator
from holdfast.cli.sidecar import sidecar
from holdfast.cli.up import up
from holdfast.cli.validate import validate
from holdfast.cli.wait import wait

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
app.command()(up)
app.command()(demo)
app.command()(apply)
app.command()(delete)
app.command()(describe)
app.command()(get)
app.command()(logs)
app.command()(wait)
app.command()(sidecar)
app.add_typer(checkpoints)
