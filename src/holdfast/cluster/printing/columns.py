"""What a table shows of an object, a column each."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypeAlias

from msgspec import Struct

from holdfast.api import kind
from holdfast.cluster.printing.ages import age
from holdfast.cluster.printing.paths import compile_path
from holdfast.cluster.protocol import JSON

# From the object and the time now; None is an empty cell.
Cell: TypeAlias = str | int | float | bool | None
Show: TypeAlias = Callable[[JSON, datetime], Cell]


class Column(Struct, frozen=True, kw_only=True):
    """A wide one is shown with -o wide only."""

    name: str
    show: Show
    type: str = "string"
    wide: bool = False
    description: str = ""


def name_of(document: JSON, _now: datetime) -> str:
    return str(document["metadata"]["name"])


def age_of(document: JSON, now: datetime) -> str:
    return age(document["metadata"].get("creationTimestamp"), now)


NAME = Column(name="NAME", show=name_of, description="The object's name.")
AGE = Column(name="AGE", show=age_of, description="How long ago it was made.")


def printer_columns(columns: Iterable[kind.Column]) -> tuple[Column, ...]:
    """The columns of a custom kind, after its name; one without any has its age."""
    return NAME, *([_printer_column(column) for column in columns] or [AGE])


def _printer_column(column: kind.Column) -> Column:
    find = compile_path(column.path)
    return Column(
        name=column.name,
        show=lambda document, now: _cell(find(document), column.type, now),
        type="string" if column.type == "date" else column.type,
        wide=column.wide,
        description=column.description,
    )


def _cell(found: list[Any], type_: str, now: datetime) -> Cell:
    if not found:
        return None
    if type_ == "date":
        return age(found[0], now)
    if len(found) > 1:
        return ",".join(map(str, found))
    value = found[0]
    return value if isinstance(value, str | int | float) else str(value)
