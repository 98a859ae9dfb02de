"""Being asked to save now: by the file HOLDFAST_NOTICE_FILE, which appears, or by SIGTERM if the script wants that.

A training that looks for the file says so by an empty one beside it: only then is the end of its pod held up for it.
"""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import NamedTuple

MAX_BYTES = 4096
NO_REASON = "no reason was given"


def announcement_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.heeded")


class NoticeState(NamedTuple):
    """What there was of a notice when somebody looked. A file that is written anew is another notice."""

    file: tuple[int, int] | None
    is_signalled: bool


class Notice:
    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._answered = NoticeState(None, is_signalled=False)
        self.is_signalled = False
        self._is_heeded = False

    def announce(self) -> None:
        """Say that notices are looked for, and answered with a checkpoint."""
        if self._file is None or self._is_heeded:
            return
        self._is_heeded = True
        with contextlib.suppress(OSError):  # then nobody waits for the answer
            announcement_file(self._file).touch()

    def listen_to_sigterm(self) -> None:
        def note(*_: object) -> None:
            self.is_signalled = True

        signal.signal(signal.SIGTERM, note)

    def look(self) -> NoticeState:
        return NoticeState(self._identity(), self.is_signalled)

    def answer(self, seen: NoticeState) -> None:
        """What was seen is answered; what came after that is not."""
        self._answered = seen

    def pending(self) -> str | None:
        """Why the training is asked to save; None when it is not, or has done so."""
        seen = self.look()
        if seen.file is not None:
            # The signal that follows an answered notice is the end that the notice was about.
            return self._reason() if seen.file != self._answered.file else None
        return "SIGTERM" if seen.is_signalled and not self._answered.is_signalled else None

    def _identity(self) -> tuple[int, int] | None:
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _reason(self) -> str:
        assert self._file is not None
        try:
            with self._file.open("rb") as stream:
                lines = stream.read(MAX_BYTES).decode(errors="replace").split("\n")
        except OSError:
            return NO_REASON
        return lines[0].strip() or NO_REASON
