"""Certificates, keys and tokens: inline or in rotated files, and never visible in a repr or traceback."""

from pathlib import Path

import structlog
from msgspec import Struct

from holdfast.cluster.errors import Misconfigured


class RedactedStruct(Struct, frozen=True, kw_only=True):
    """A struct whose repr is only its name, so that no secret gets printed."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Used by Rich, also in tracebacks that show local variables."""
        return []


log = structlog.get_logger(__name__)

# Kubelets and cloud agents replace a token long before the old one expires, so a minute's delay costs nothing.
RECHECK_S = 60.0


class PemSource(RedactedStruct, frozen=True, kw_only=True):
    """The source of a certificate, key or token: `data`, or the file at `path`."""

    what: str
    data: bytes = b""
    path: Path | None = None


class RotatingFile:
    """The current content of a source; a file is read again after a change."""

    def __init__(self, source: PemSource) -> None:
        self._source = source
        self._content = source.data
        self._version: tuple[int, int, int] | None = None
        self._checked_s = float("-inf")

    def read(self, now_s: float, *, recheck: bool = False) -> bytes:
        """The content; `recheck` checks the file even if the last check is less than a minute ago."""
        path = self._source.path
        if path is None or (not recheck and now_s - self._checked_s < RECHECK_S):
            return self._content
        try:
            self._refresh(path)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            if not self._content:
                raise Misconfigured(f"cannot read the {self._source.what} in {path}: {reason}") from None
            log.warning("file unreadable, going on with what it held", what=self._source.what, path=str(path))
        if not self._content:
            raise Misconfigured(f"the {self._source.what} in {path} is empty")
        self._checked_s = now_s
        return self._content

    def _refresh(self, path: Path) -> None:
        stat = path.stat()
        version = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if version != self._version:
            # An empty file is being written just now.
            self._content = path.read_bytes() or self._content
            self._version = version
