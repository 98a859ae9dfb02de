"""Processes that a runner left behind when it was killed: found by identity, never by name, and ended."""

import asyncio
import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.machine import journal
from holdfast.machine.environment import MACHINE, POD_UID
from holdfast.machine.identity import ProcessId, Stat, boot_id, environment, processes

PATIENCE_S = 10.0
PASS_S = 0.02


class OrphansRemain(HoldfastError):
    """Processes of an earlier run that don't end."""


async def end_left_behind(pods: Path, machine: str) -> int:
    """End whatever an earlier runner on this data folder started and is still there; returns how many those were."""
    noted = [identity for folder in _folders(pods) for identity in journal.read_processes(folder)]
    return await _end({MACHINE: machine}, noted)


async def end_of_pod(folder: Path, machine: str, uid: str) -> int:
    """The same for one pod: what escaped its supervisors because one of them was killed."""
    return await _end({MACHINE: machine, POD_UID: uid}, journal.read_processes(folder))


async def _end(marker: Mapping[str, str], noted: Iterable[ProcessId]) -> int:
    loop = asyncio.get_running_loop()
    give_up = loop.time() + PATIENCE_S
    ended: set[int] = set()
    while left := find(marker, noted):
        if loop.time() > give_up:
            pids = ", ".join(str(one.pid) for one in left)
            raise OrphansRemain(f"these processes of an earlier run don't end: {pids}; end them, then start again")
        for one in left:
            one.send(signal.SIGKILL)
        ended |= {one.pid for one in left}
        await asyncio.sleep(PASS_S)
    return len(ended)


def find(marker: Mapping[str, str], noted: Iterable[ProcessId]) -> list[ProcessId]:
    """By the record of what was started, by its sessions, by the mark in the environment; and their descendants."""
    boot, all_processes = boot_id(), processes()
    alive = {pid: found for pid, found in all_processes.items() if found.state != "Z"}
    known = {one.pid: one.start for one in noted if one.boot == boot}
    ours = {pid for pid, found in alive.items() if _is_ours(pid, found, alive, known, marker)}
    ours |= _below(ours, alive)
    ours -= _self_and_ancestors(all_processes)
    return [ProcessId(pid, alive[pid].start, boot) for pid in sorted(ours)]


def _is_ours(
    pid: int, found: Stat, alive: Mapping[int, Stat], known: Mapping[int, int], marker: Mapping[str, str]
) -> bool:
    if known.get(pid) == found.start:
        return True
    # A number is not given out again while a session bears it: unless its leader is a stranger, the session is ours.
    leader = alive.get(found.session)
    if found.session in known and (leader is None or leader.start == known[found.session]):
        return True
    return marker.items() <= environment(pid).items()


def _below(roots: set[int], alive: Mapping[int, Stat]) -> set[int]:
    found = set(roots)
    while new := {pid for pid, one in alive.items() if one.parent in found} - found:
        found |= new
    return found


def _self_and_ancestors(all_processes: Mapping[int, Stat]) -> set[int]:
    """A runner may itself have been started by a process that bears the mark."""
    found, pid = set(), os.getpid()
    while pid and pid not in found:
        found.add(pid)
        pid = all_processes[pid].parent if pid in all_processes else 0
    return found


def _folders(pods: Path) -> list[Path]:
    return list(pods.iterdir()) if pods.exists() else []
