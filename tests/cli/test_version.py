"""The command itself."""

from typer.testing import CliRunner

from holdfast import __version__
from holdfast.cli.main import app


def test_the_version_is_the_packages() -> None:
    assert CliRunner().invoke(app, ["version"]).output == f"{__version__}\n"
