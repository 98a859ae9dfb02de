"""What the page quotes is what the code says."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.markdown import tables

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
PACKAGES = ("checkpointbackup", "checkpoints/images", "node", "pods", "runtime")
SECTION = "6. A CheckpointBackup is not saved"


def _text(node: ast.expr) -> str | None:
    """The words of a string, with … for what is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
        return "".join(map(str, parts))
    return None


@cache
def _sentences() -> tuple[str, ...]:
    """Every string of the sources that say why a backup is not saved."""
    files = [path for package in PACKAGES for path in (ROOT / "src" / "holdfast" / package).rglob("*.py")]
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.expr))
    return tuple(text for node in nodes if (text := _text(node)))


def _rows() -> dict[str, str]:
    return {reason: cells["what it says"] for reason, cells in tables(PAGE.read_text())[SECTION].items()}


def _quotes() -> list[str]:
    section = PAGE.read_text().partition(f"## {SECTION}")[2]
    return [re.sub(r"\s+", " ", quote) for quote in re.findall(r'"([^"]+)"', section)]


@pytest.mark.parametrize("quote", _quotes())
def test_a_quoted_sentence_is_one_of_the_code(quote: str) -> None:
    assert any(quote in sentence for sentence in _sentences())


@pytest.mark.parametrize("reason", _rows())
def test_a_listed_reason_is_one_of_the_code(reason: str) -> None:
    assert reason in _sentences()


def test_every_row_has_a_quoted_sentence() -> None:
    assert _rows()
    assert all(cell.startswith('"') and cell.endswith('"') for cell in _rows().values())
