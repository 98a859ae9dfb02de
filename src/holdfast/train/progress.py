"""JSON lines in PROGRESS_FILE, one object each. What can't be told is no reason to stop a training."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./:-]{0,62}", re.ASCII)
MAX_NUMBERS = 64
# Beyond it a number is not exact in the readers' floating point, nor in a status.
MAX_WHOLE = 2**53


class Progress:
    """Appends lines; says once that it can't, and once that a number was left out."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._warned: set[str] = set()
        self._is_torn = False

    def write(self, facts: Mapping[str, object]) -> None:
        if self._file is None:
            return
        text = ("\n" if self._is_torn else "") + json.dumps(facts) + "\n"
        try:
            self._is_torn = _append(self._file, text.encode())
        except OSError as error:
            self._warn("file", f"can't write progress to {self._file}: {error.strerror}; the training goes on")

    def numbers(self, given: Mapping[str, object]) -> dict[str, float]:
        """Those of them that a reader can use."""
        taken: dict[str, float] = {}
        for name, value in given.items():
            number = _number(value)
            if number is None or len(taken) == MAX_NUMBERS or not NAME.fullmatch(str(name)):
                self._warn("number", f"{str(name)[:63]}={str(value)[:63]!s} is not reported: {_wanted()}")
            else:
                taken[name] = number
        return taken

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warn(text)


def warn(text: str) -> None:
    try:
        sys.stderr.write(f"holdfast: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass  # nobody listens: stderr is closed, or was never there


def _wanted() -> str:
    return f"at most {MAX_NUMBERS} finite numbers with short plain names are (this is said once)"


def _number(value: object) -> float | None:
    """Also of a framework's own number, and of an array or tensor that holds one."""
    if isinstance(value, int):
        return int(value) if abs(value) <= MAX_WHOLE else None
    if isinstance(value, (str, bytes)):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever it is, it may know how
    except Exception:  # noqa: BLE001  # a framework's own conversion may raise anything
        return None
    return number if math.isfinite(number) else None


def _append(file: Path, line: bytes) -> bool:
    """Whether only a part of the line went to the end of the file: the volume is full."""
    # Without O_NONBLOCK, opening a pipe that nobody reads would wait for ever.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(file, flags, 0o644)
    try:
        return os.write(descriptor, line) < len(line)
    finally:
        os.close(descriptor)
