"""Notices ask the training to save now: the file HOLDFAST_NOTICE_FILE, or SIGTERM if the script chooses so.

A training that checks for the file announces that with an empty file beside it: only then does the termination of its
pod wait for a save.
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
    """The state of the notice at one time. A file that is written again is a new notice."""

    file: tuple[int, int] | None
    is_signalled: bool


class Notice:
    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._answered = NoticeState(None, is_signalled=False)
        self.is_signalled = False
        self._is_announced = False

    def announce(self) -> None:
        """Announce that this training checks for notices, and answers them with a checkpoint."""
        if self._file is None or self._is_announced:
            return
        self._is_announced = True
        with contextlib.suppress(OSError):  # without the announcement nobody waits for the answer
            announcement_file(self._file).touch()

    def listen_to_sigterm(self) -> None:
        def on_sigterm(*_: object) -> None:
            self.is_signalled = True

        signal.signal(signal.SIGTERM, on_sigterm)

    def observe(self) -> NoticeState:
        return NoticeState(self._identity(), self.is_signalled)

    def answer(self, seen: NoticeState) -> None:
        """Mark the notice in `seen` as answered; a later notice is not."""
        self._answered = seen

    def pending(self) -> str | None:
        """Why the training is asked to save; None when it is not asked, or has saved."""
        seen = self.observe()
        if seen.file is not None:
            # The SIGTERM that follows an answered notice is the termination that the notice announced.
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
