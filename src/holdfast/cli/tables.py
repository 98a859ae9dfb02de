"""Tables as kubectl prints them: columns three spaces apart, colours only on a terminal."""

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime

import typer

from holdfast.cli.failing import printable
from holdfast.cluster.known import KnownKind
from holdfast.cluster.printing.columns import NAME, Column
from holdfast.cluster.protocol import JSON

GAP = "   "
_COLOURED = ("STATE", "STATUS", "PHASE")
_COLOURS = {
    typer.colors.GREEN: ("Completed", "Complete", "Succeeded", "Ready", "Active", "Bound"),
    typer.colors.CYAN: ("Running", "Initializing", "Scheduled", "Scheduling"),
    typer.colors.YELLOW: ("Pending", "Restarting", "Suspended", "Terminating"),
    typer.colors.RED: ("Failed", "Error", "OOMKilled", "NotReady", "CrashLoopBackOff"),
}
_COLOUR_OF = {word: colour for colour, words in _COLOURS.items() for word in words}


class Table:
    """Rows of one kind. It remembers its widths, so that rows which come later stand under the first."""

    def __init__(
        self,
        known: KnownKind,
        *,
        wide: bool = False,
        with_namespace: bool = False,
        with_kind: bool = False,
        coloured: bool = False,
    ) -> None:
        self._columns = [column for column in known.columns if wide or not column.wide]
        self._prefix = f"{known.title}/" if with_kind else ""
        self._with_namespace = with_namespace and known.resource.namespaced
        self._coloured = coloured
        self._widths: list[int] = []

    @property
    def headers(self) -> list[str]:
        names = [column.name for column in self._columns]
        return ["NAMESPACE", *names] if self._with_namespace else names

    def row(self, document: JSON, now: datetime) -> list[str]:
        cells = [self._cell(column, document, now) for column in self._columns]
        return [document["metadata"].get("namespace", ""), *cells] if self._with_namespace else cells

    def lines(self, rows: Iterable[Sequence[str]], *, headers: bool = True) -> list[str]:
        whole = [self.headers, *rows] if headers else list(rows)
        columns = range(len(self.headers))
        known = self._widths or [0] * len(columns)
        self._widths = [max([known[column], *(len(row[column]) for row in whole)]) for column in columns]
        lines = [self._line(row, plain=headers and number == 0) for number, row in enumerate(whole)]
        return [line.rstrip() for line in lines]

    def _cell(self, column: Column, document: JSON, now: datetime) -> str:
        value = column.show(document, now)
        text = "" if value is None else printable(four_digits(value) if isinstance(value, float) else str(value))
        return f"{self._prefix}{text}" if column is NAME else text

    def _line(self, row: Sequence[str], *, plain: bool) -> str:
        padded = [cell.ljust(width) for cell, width in zip(row, self._widths, strict=True)]
        if self._coloured and not plain:
            padded = [self._colour(name, cell) for name, cell in zip(self.headers, padded, strict=True)]
        return GAP.join(padded)

    @staticmethod
    def _colour(header: str, cell: str) -> str:
        colour = _COLOUR_OF.get(cell.strip()) if header in _COLOURED else None
        return typer.style(cell, fg=colour) if colour else cell


def four_digits(value: float) -> str:
    """A measured number as people read it, such as a loss: 0.2275; the whole of it is in -o yaml."""
    return f"{value:.0f}" if 10_000 <= abs(value) < 1e15 else f"{value:.4g}"


def aligned(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Plain columns, as wide as their widest cell."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    return [
        indent + GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def wants_colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
