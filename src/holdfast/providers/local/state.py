"""The machines of this computer in one file, so that the next start finds them.

Machines that are gone stay listed for a while: whoever asks again for one must not get a second one.
"""

import asyncio
import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.api.spotinstancevm import InstanceState
from holdfast.errors import HoldfastError
from holdfast.providers.errors import ProviderError
from holdfast.providers.protocol import Machine, MachineSpec

# Gone machines that are remembered. A name is a function of a uid, so it is asked for within hours, if at all.
REMEMBERED = 500
INTERNAL_IP = "127.0.0.1"


class StateUnreadable(HoldfastError):
    """The file of the machines is damaged."""


class StateUnwritable(ProviderError):
    """A change of the machines can't be recorded, and so it is not made."""


class LocalMachine(Struct, frozen=True, kw_only=True):
    """One machine, from before it is made until it is forgotten."""

    name: str
    zone: str
    id: str
    uid: str
    cluster_uid: str
    machine_type: str
    gpu_type: str = ""
    gpu_count: int = 0
    preemptible: bool = True
    notice_s: float | None = None
    """How long before its end it gets its notice, by its template."""
    created_at: datetime
    expires_at: datetime | None = None
    """When its longest run is over."""
    state: InstanceState = "PROVISIONING"
    preempted_at: datetime | None = None
    """When it was decided that it is taken back."""
    deadline: datetime | None = None
    """When it is taken back."""

    @property
    def is_gone(self) -> bool:
        return self.state == "TERMINATED"

    @property
    def ends_at(self) -> datetime | None:
        return min(filter(None, (self.deadline, self.expires_at)), default=None)

    def as_listed(self) -> Machine:
        return Machine(
            name=self.name,
            zone=self.zone,
            id=self.id,
            state=self.state,
            internal_ip=INTERNAL_IP,
            created_at=self.created_at,
            uid=self.uid,
            cluster_uid=self.cluster_uid,
        )


class _File(Struct, frozen=True, kw_only=True):
    next_id: int = 1
    machines: tuple[LocalMachine, ...] = ()


class MachineTable:
    """The machines by name. `put` returns once the change is on disk."""

    def __init__(self, path: Path) -> None:
        """Raises `StateUnreadable`."""
        self._path = path
        self._writing = asyncio.Lock()
        stored = _read(path)
        self._next_id = stored.next_id
        self._machines = {machine.name: machine for machine in stored.machines}

    def __iter__(self) -> Iterator[LocalMachine]:
        return iter(tuple(self._machines.values()))

    def find(self, name: str) -> LocalMachine | None:
        return self._machines.get(name)

    def new(self, spec: MachineSpec, created_at: datetime, expires_at: datetime | None) -> LocalMachine:
        """A machine with a number of its own, which is not in the table yet."""
        number, self._next_id = self._next_id, self._next_id + 1
        return LocalMachine(
            name=spec.name,
            zone=spec.zone,
            id=str(number),
            uid=spec.uid,
            cluster_uid=spec.cluster_uid,
            machine_type=spec.machine_type,
            gpu_type=spec.gpu_type,
            gpu_count=spec.gpu_count,
            preemptible=spec.preemptible,
            notice_s=spec.preemption_notice_s,
            created_at=created_at,
            expires_at=expires_at,
        )

    async def put(self, machine: LocalMachine) -> None:
        """Raises `StateUnwritable`, and then nothing has changed."""
        async with self._writing:
            others = (each for each in self._machines.values() if each.name != machine.name)
            machines = _without_oldest_gone((*others, machine))
            state = _File(next_id=self._next_id, machines=tuple(machines.values()))
            try:
                await asyncio.to_thread(_write, self._path, msgspec.json.encode(state))
            except OSError as error:
                raise StateUnwritable(f"{self._path} can't be written: {error.strerror or error}") from None
            self._machines = machines


def _without_oldest_gone(machines: Iterable[LocalMachine]) -> dict[str, LocalMachine]:
    """In the order of the last change, so that the first ones are the oldest."""
    found = tuple(machines)
    gone = [machine.name for machine in found if machine.is_gone]
    forgotten = set(gone[: max(0, len(gone) - REMEMBERED)])
    return {machine.name: machine for machine in found if machine.name not in forgotten}


def _read(path: Path) -> _File:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return _File()
    except (OSError, msgspec.MsgspecError) as error:
        raise StateUnreadable(
            f"{path}, the list of the machines on this computer, can't be read ({error}): restore it, or remove it, "
            "and no machine is remembered"
        ) from None


def _write(path: Path, content: bytes) -> None:
    """A crash leaves either the old file or the new one."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
