"""What a sidecar that starts anew in the same pod goes on from. Without a folder for it, nothing is remembered."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from holdfast.reports.wire import Progress
from holdfast.sidecar.told import InvalidProgress

RESTORED = "restored.json"
TOLD = "told.jsonl"

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class ResumeInfo(Struct, frozen=True):
    """What the attempt resumed from; the training may have started since, so that it is not looked for again."""

    path: str = ""
    epoch: int = 0
    attempt: int = 0
    leaf: str = ""
    done: int = 0
    """The epochs that were done when it was saved: less than its number if that was within an epoch."""


class RestartState:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def began(self) -> ResumeInfo | None:
        if self._folder is None:
            return None
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return msgspec.json.decode((self._folder / RESTORED).read_bytes(), type=ResumeInfo)
        return None

    def begin(self, began: ResumeInfo) -> None:
        with _trying():
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                partial = self._folder / f".{RESTORED}"
                partial.write_bytes(msgspec.json.encode(began))
                partial.replace(self._folder / RESTORED)

    @property
    def progress_journal(self) -> Path | None:
        """The file of what was noted, which is read as the training's own is."""
        return self._folder / TOLD if self._folder is not None else None

    def journal_progress(self, entry: Progress) -> bool:
        """Whether the end of an epoch that is in no file of the training's is in this one."""
        with _trying():
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                with (self._folder / TOLD).open("ab") as file:
                    file.write(msgspec.json.encode(entry) + b"\n")
                return True
        return False


def read_noted(line: bytes) -> Progress:
    try:
        return msgspec.json.decode(line, type=Progress)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise InvalidProgress("it was not written to its end") from None


@contextlib.contextmanager
def _trying() -> Iterator[None]:
    """It is a convenience: a full disk is no reason to stop anything."""
    try:
        yield
    except OSError as error:
        log.warning("can't write down what a restart of this sidecar would need", reason=str(error))
