"""Facts that hold secrets show none of them, in whatever way they get printed."""

from pathlib import Path

import structlog
from msgspec import Struct

from holdfast.cluster.errors import Misconfigured


class RedactedStruct(Struct, frozen=True, kw_only=True):
    """A struct whose text is its name alone."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Rich, and with it a traceback that shows local variables, asks here."""
        return []


# Certificates, keys and tokens: said in line, or kept in a file that is replaced while we run.

log = structlog.get_logger(__name__)

# Kubelets and cloud agents replace a token long before the old one expires, so a minute's delay costs nothing.
RECHECK_S = 60.0


class PemSource(RedactedStruct, frozen=True, kw_only=True):
    """Where a certificate, key or token comes from: `data`, or the file at `path`."""

    what: str
    data: bytes = b""
    path: Path | None = None


class RotatingFile:
    """The present content of a material; a file is read again once it has changed."""

    def __init__(self, material: PemSource) -> None:
        self._material = material
        self._content = material.data
        self._mark: tuple[int, int, int] | None = None
        self._checked_s = float("-inf")

    def read(self, now_s: float, *, recheck: bool = False) -> bytes:
        """The content; `recheck` looks at the file although it was looked at within the last minute."""
        path = self._material.path
        if path is None or (not recheck and now_s - self._checked_s < RECHECK_S):
            return self._content
        try:
            self._refresh(path)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            if not self._content:
                raise Misconfigured(f"cannot read the {self._material.what} in {path}: {reason}") from None
            log.warning("file unreadable, going on with what it held", what=self._material.what, path=str(path))
        if not self._content:
            raise Misconfigured(f"the {self._material.what} in {path} is empty")
        self._checked_s = now_s
        return self._content

    def _refresh(self, path: Path) -> None:
        stat = path.stat()
        mark = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if mark != self._mark:
            # An empty file is one that is being written just now.
            self._content = path.read_bytes() or self._content
            self._mark = mark
