"""What the pages promise: manifests that are accepted, links that lead somewhere."""

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from holdfast.cli.commands import validate
from holdfast.cli.operator import operator
from tests.docs.markdown import anchors, blocks, links, tables

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "examples/README.md"]
VALIDATE = typer.Typer()
VALIDATE.command()(validate)

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
manifests = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(blocks(page.read_text(), "yaml"), start=1)
    if re.search(r"^(apiVersion|kind|spec):", block, flags=re.MULTILINE)  # other files are YAML, too: Prometheus' rules
]


def test_there_are_pages_with_manifests_and_links() -> None:
    assert {page.name for page in PAGES} >= {"README.md", "trainingjob.md", "scheduling.md", "failures.md"}
    assert len(manifests) > 3
    assert ("docs/trainingjob.md", "") in links((ROOT / "README.md").read_text())
    assert "speccheckpoint" in anchors((ROOT / "docs/fields/trainingjob.md").read_text())


@pytest.mark.parametrize("text", manifests)
def test_a_manifest_of_a_page_is_accepted(text: str) -> None:
    result = CliRunner().invoke(VALIDATE, ["-f", "-"], input=text)
    assert result.exit_code == 0, result.output
    assert all(
        " ok" in line or "is not checked: holdfast checks its own kinds" in line for line in result.stdout.splitlines()
    )


@pages
def test_a_link_leads_to_a_page_and_a_heading_that_are_there(page: Path) -> None:
    for path, fragment in links(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} is not there"
        assert not fragment or fragment in anchors(target.read_text()), f"{path}#{fragment} is not there"


def _options() -> dict[str, str]:
    """The operator's options with their defaults, as its pages list them."""
    listed = {}
    for page in PAGES:
        for option, row in tables(page.read_text()).get("Options of the operator", {}).items():
            listed[option.strip("`")] = row["default"].strip("`")
    return listed


@pytest.mark.parametrize(("option", "default"), _options().items())
def test_an_option_that_a_page_lists_is_the_operator_s_with_that_default(option: str, default: str) -> None:
    app = typer.Typer()
    app.command()(operator)
    command = typer.main.get_command(app)
    known = {name: parameter.default for parameter in command.params for name in parameter.opts}
    shown = known[option]
    assert default == (str(shown).lower() if isinstance(shown, bool) else f"{shown:g}")


@pages
def test_an_example_that_a_page_names_is_there(page: Path) -> None:
    for name in re.findall(r"\bexamples/[\w./-]+\w", page.read_text()):
        assert (ROOT / name).exists(), name


def test_every_example_is_named_by_a_page() -> None:
    text = "".join(page.read_text() for page in PAGES)
    kinds = {path.name for path in (ROOT / "examples").glob("trainingjob*.yaml")}
    assert {name for name in kinds if f"examples/{name}" not in text} == set()


def test_the_list_of_what_examples_need_has_every_example() -> None:
    folder = ROOT / "examples"
    listed = {path for path, _ in links((folder / "README.md").read_text())}
    assert listed == {path.relative_to(folder).as_posix() for path in folder.rglob("*.yaml")}
