"""Facts that hold secrets show none of them, in whatever way they get printed."""

from msgspec import Struct


class RedactedStruct(Struct, frozen=True, kw_only=True):
    """A struct whose text is its name alone."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Rich, and with it a traceback that shows local variables, asks here."""
        return []
