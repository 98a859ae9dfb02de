"""What the page quotes is what the code says."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.markdown import tables

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
SECTIONS = {
    "6. A CheckpointBackup is not saved": ("checkpointbackup", "checkpoints/images", "node", "pods", "runtime"),
    "7. A SpotInstanceJob gets no machine, or does not go on": (
        "api",
        "machines",
        "providers",
        "runtime",
        "scheduling",
        "spotinstancejob",
    ),
}


def _text(node: ast.expr) -> str | None:
    """The words of a string, with … for what is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
        return "".join(map(str, parts))
    return None


@cache
def _sentences(section: str) -> tuple[str, ...]:
    """Every string of the sources that say what the section is about, and the names of their classes."""
    files = [path for package in SECTIONS[section] for path in (ROOT / "src" / "holdfast" / package).rglob("*.py")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    texts = tuple(text for node in nodes if isinstance(node, ast.expr) and (text := _text(node)))
    return (*texts, *(node.name for node in nodes if isinstance(node, ast.ClassDef)))


def _rows(section: str) -> dict[str, str]:
    """By reason what is quoted; other tables have no reasons."""
    rows = tables(PAGE.read_text())[section].items()
    return {reason: cells["what it says"] for reason, cells in rows if "what it says" in cells}


def _quotes(section: str) -> list[str]:
    text = PAGE.read_text().partition(f"## {section}")[2].partition("\n## ")[0]
    return [re.sub(r"\s+", " ", quote) for quote in re.findall(r'"([^"]+)"', text)]


@pytest.mark.parametrize(("section", "quote"), [(each, quote) for each in SECTIONS for quote in _quotes(each)])
def test_a_quoted_sentence_is_one_of_the_code(section: str, quote: str) -> None:
    assert any(quote in sentence for sentence in _sentences(section))


@pytest.mark.parametrize(("section", "reason"), [(each, reason) for each in SECTIONS for reason in _rows(each)])
def test_a_listed_reason_is_one_of_the_code(section: str, reason: str) -> None:
    assert reason in _sentences(section)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_row_has_a_quoted_sentence(section: str) -> None:
    assert _rows(section)
    assert all(cell.startswith('"') and cell.endswith('"') for cell in _rows(section).values())


# What goes well, or is wanted, needs no advice.
ORDINARY = {"OnSchedule", "Started", "Pushed", "Suspended"}


def test_every_reason_of_the_operator_for_a_checkpointbackup_is_listed() -> None:
    package = ROOT / "src" / "holdfast" / "checkpointbackup"
    nodes = [node for path in package.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    told = {
        text
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("Explanation", "CannotSave", "InvalidSchedule")
        and node.args
        and (text := _text(node.args[0])) is not None
    }
    assert len(told) > 15
    assert told - ORDINARY <= set(_rows("6. A CheckpointBackup is not saved"))
