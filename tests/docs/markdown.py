"""As much of Markdown as the project's pages use."""

import re
from collections.abc import Iterator
from typing import TypeAlias

Table: TypeAlias = dict[str, dict[str, dict[str, str]]]


def tables(text: str) -> Table:
    """The table under each heading: its rows by their first cell, each a map from column to cell."""
    found: Table = {}
    title, columns = "", list[str]()
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] if line.startswith("|") else []
        if line.startswith("#"):
            title = line.lstrip("# ")
        if not cells or not columns:
            columns = cells
        elif set(cells[0]) != {"-"}:
            found.setdefault(title, {})[cells[0]] = dict(zip(columns, cells, strict=True))
    return found


def links(text: str) -> Iterator[tuple[str, str]]:
    """Every link to a file of the project or a heading: the path, which may be empty, and the fragment."""
    for target in re.findall(r"\[[^]\n]*\]\(([^)\s]+)\)", without_code(text)):
        if "://" not in target:
            path, _, fragment = target.partition("#")
            yield path, fragment


def anchors(text: str) -> set[str]:
    """What the headings can be linked to by."""
    titles = re.findall(r"^#+ (.*)$", prose(text), flags=re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def without_code(text: str) -> str:
    """The text without what is shown literally, where brackets are only brackets."""
    return re.sub(r"`[^`\n]*`", "", prose(text))


def runnable(text: str) -> list[str]:
    """The commands of the console blocks that a comment marks as runnable, in order."""
    marked = re.findall(r"^<!-- runnable -->\n```console\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [line.removeprefix("$ ") for block in marked for line in block.splitlines() if line.startswith("$ ")]
