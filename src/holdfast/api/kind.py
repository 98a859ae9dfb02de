"""What the API serves of a kind, besides its schema."""

from typing import Generic, TypeVar

from msgspec import Struct

from holdfast.api.meta import Object

T = TypeVar("T", bound=Object)


class PrinterColumn(Struct, frozen=True, kw_only=True):
    """A column of `kubectl get`; a wide one is shown with -o wide only."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    description: str


class Scale(Struct, frozen=True, kw_only=True):
    """Where `kubectl scale` and autoscalers find what they read and write."""

    spec_replicas_path: str
    status_replicas_path: str
    label_selector_path: str


class Kind(Struct, Generic[T], frozen=True, kw_only=True):
    """One custom kind; the first of its versions is the stored one, and all share one schema."""

    group: str
    versions: tuple[str, ...]
    kind: str
    plural: str
    short_name: str
    model: type[T]
    columns: tuple[PrinterColumn, ...]
    scale: Scale | None = None

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        """The stored version, with its group."""
        return f"{self.group}/{self.versions[0]}"

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}"


AGE = PrinterColumn(
    name="AGE", path=".metadata.creationTimestamp", type="date", description="When the object was created."
)
