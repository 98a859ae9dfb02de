"""Writes progress as JSON lines to PROGRESS_FILE. A report that can't be written is no reason to stop a training."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./:-]{0,62}", re.ASCII)
MAX_NUMBERS = 64
# A larger integer is not exact in the floating point numbers of the readers, nor in a status.
MAX_WHOLE = 2**53


class ProgressFile:
    """Appends lines; warns once if that fails, and once if a number is left out."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._warned: set[str] = set()
        self._is_line_partial = False

    def write(self, facts: Mapping[str, object]) -> None:
        if self._file is None:
            return
        text = ("\n" if self._is_line_partial else "") + json.dumps(facts) + "\n"
        try:
            self._is_line_partial = _append(self._file, text.encode())
        except OSError as error:
            self._warn("file", f"can't write progress to {self._file}: {error.strerror}; the training goes on")

    def numbers(self, given: Mapping[str, object]) -> dict[str, float]:
        """The numbers that a reader can use."""
        taken: dict[str, float] = {}
        for name, value in given.items():
            number = _number(value)
            if number is None or len(taken) == MAX_NUMBERS or not NAME.fullmatch(str(name)):
                self._warn("number", f"{str(name)[:63]}={str(value)[:63]!s} is not reported: {_expected()}")
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
        pass  # nobody reads: stderr is closed, or never existed


def _expected() -> str:
    return f"at most {MAX_NUMBERS} finite numbers with short plain names are (this is said once)"


def _number(value: object) -> float | None:
    """The value as a number; accepts numbers of frameworks, and arrays and tensors that hold one number."""
    if isinstance(value, int):
        return int(value) if abs(value) <= MAX_WHOLE else None
    if isinstance(value, (str, bytes)):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]  # any type may support the conversion
    except Exception:  # noqa: BLE001  # a framework's own conversion may raise anything
        return None
    return number if math.isfinite(number) else None


def _append(file: Path, line: bytes) -> bool:
    """Append a line; true when only a part of the line was written because the volume is full."""
    # Without O_NONBLOCK, opening a pipe that nobody reads would wait for ever.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(file, flags, 0o644)
    try:
        return os.write(descriptor, line) < len(line)
    finally:
        os.close(descriptor)


# The utilization of the GPUs that this process sees, from NVIDIA's library (NVML) where it is installed.

if TYPE_CHECKING:
    import ctypes

LIBRARY = "libnvidia-ml.so.1"
METRIC = "gpu_utilization_percent"


class GpuMonitor:
    """Loads the library at the first use; a library that is missing is not searched for again."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._name = library
        self._library: ctypes.CDLL | None = None
        self._is_initialized = False
        self.is_there = True
        """False once the library is known to be missing."""

    def utilization_percent(self) -> float | None:
        """The mean over the GPUs that report a value; None where none does, which does not mean idle."""
        if not self._is_usable():
            return None
        percents = list(self._each_percent())
        return sum(percents) / len(percents) if percents else None

    def _is_usable(self) -> bool:
        if self._library is None and self.is_there:
            try:
                import ctypes  # expensive to import, and most scripts don't need it

                self._library = ctypes.CDLL(self._name)
                self._library.nvmlDeviceGetUtilizationRates  # noqa: B018  # without this function it is not NVML
            except (ImportError, OSError, AttributeError):
                self._library, self.is_there = None, False
        if self._library is not None and not self._is_initialized:
            self._is_initialized = self._library.nvmlInit_v2() == 0
        return self._is_initialized

    def _each_percent(self) -> Iterator[int]:
        import ctypes

        assert self._library is not None
        count, device, rates = ctypes.c_uint(), ctypes.c_void_p(), (ctypes.c_uint * 2)()  # of the GPU and of its memory
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return
        for index in range(count.value):
            if self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) != 0:
                continue
            if self._library.nvmlDeviceGetUtilizationRates(device, rates) == 0 and rates[0] <= 100:
                yield rates[0]
