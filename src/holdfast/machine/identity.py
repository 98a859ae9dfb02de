"""Which process is which: a number alone is used again, a number with its start time and boot is not."""

import contextlib
import os
import signal
from pathlib import Path

from msgspec import Struct

PROC = Path("/proc")


class Stat(Struct, frozen=True):
    """What the kernel says of a process."""

    parent: int
    session: int
    start: int  # in clock ticks since boot
    state: str


class ProcessId(Struct, frozen=True):
    """One process of one boot, and no other."""

    pid: int
    start: int
    boot: str

    def is_alive(self) -> bool:
        found = stat(self.pid)
        return found is not None and found.start == self.start and found.state != "Z" and self.boot == boot_id()

    def send(self, number: signal.Signals) -> None:
        """Signal this process, never another one that has been given its number since."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def stat(pid: int) -> Stat | None:
    """None when there is no such process (any more)."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything, even parentheses; the fields after it are numbered from 3.
    fields = text.rpartition(")")[2].split()
    return Stat(parent=int(fields[1]), session=int(fields[3]), start=int(fields[19]), state=fields[0])


def identify(pid: int) -> ProcessId | None:
    found = stat(pid)
    return ProcessId(pid, found.start, boot_id()) if found else None


def processes() -> dict[int, Stat]:
    """Every process of the machine."""
    pids = (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())
    return {pid: found for pid in pids if (found := stat(pid))}


def environment(pid: int) -> dict[str, str]:
    """What the process was started with; empty where that is not ours to see."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
