"""How a new machine becomes a Node: the interface between the life of a machine and what logs in to it.

`SshJoiner` logs in and runs kubeadm; `TurnsUp` waits for machines that see to it themselves.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypeAlias

from msgspec import Struct

from holdfast.api.spotinstancevm import SSH, KubeadmJoinConfig
from holdfast.errors import HoldfastError

SPOT_LABEL = "holdfast.dev/spot"
INSTANCE_LABEL = "holdfast.dev/instance"


class JoinStep(StrEnum):
    """In order. The names are reasons of the condition Joined."""

    HOST_KEY = "HostKey"
    LOGIN = "Login"
    PREFLIGHT = "Preflight"
    KUBEADM = "Kubeadm"
    NODE_REGISTERED = "NodeRegistered"


class JoinTarget(Struct, frozen=True, kw_only=True):
    """For whom a machine is made, and how it is to join: known before it is made."""

    uid: str
    """Of the ProvisionedInstance."""
    namespace: str
    """Of the ProvisionedInstance: references to Secrets without a namespace mean this one."""
    node_name: str
    project: str
    zone: str
    startup_script: str = ""
    is_spot: bool = True
    ssh: SSH | None = None
    kubeadm: KubeadmJoinConfig | None = None

    @property
    def provider_id(self) -> str:
        return f"gce://{self.project}/{self.zone}/{self.node_name}"

    @property
    def node_labels(self) -> dict[str, str]:
        """A loss of a Node with the first counts as a preemption."""
        return {**({SPOT_LABEL: "true"} if self.is_spot else {}), INSTANCE_LABEL: self.uid}


class JoinRequest(Struct, frozen=True, kw_only=True):
    """A machine that runs, and is to join."""

    target: JoinTarget
    addresses: tuple[str, ...]
    """Tried in this order; empty ones are left out."""
    resumed: "JoinProgress | None" = None
    """What an operator before this one had reached: a step does not get its time anew."""


class JoinProgress(Struct, frozen=True, kw_only=True):
    """What is waited for now; `message` says it to people, and has no secrets."""

    step: JoinStep
    deadline: datetime
    message: str


Report: TypeAlias = Callable[[JoinProgress], None]


class JoinFailed(HoldfastError):
    """The machine will not join: give it back. The text has the last lines that it said, and no secrets."""

    def __init__(self, step: JoinStep, message: str) -> None:
        super().__init__(message)
        self.step = step


class CannotJoin(HoldfastError):
    """No machine could join as things are: make none. The text says what to correct; `reason` is for a condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class HostKeySource(Protocol):
    """What of a `Provider` a join needs."""

    async def host_keys(self, zone: str, name: str) -> tuple[str, ...]: ...


class Joiner(Protocol):
    async def metadata(self, target: JoinTarget) -> Mapping[str, str]:
        """What the machine is to be made with. Raises `CannotJoin`, `SecretUnavailable` or `ClusterError`."""
        ...

    async def join(self, request: JoinRequest, provider: HostKeySource, report: Report) -> None:
        """Returns once the Node of that name is there. Raises `JoinFailed`.

        May be called again after a crash: what an earlier call has done is found on the machine. Whoever cancels it
        calls `revoke`.
        """
        ...

    async def revoke(self, uid: str) -> None:
        """Take back the right to join that was made for this machine; nothing is done where there is none."""
        ...


class TurnsUp:
    """For machines that join by themselves: the Node is waited for by whoever watches Nodes."""

    async def metadata(self, target: JoinTarget) -> Mapping[str, str]:
        return {"startup-script": target.startup_script} if target.startup_script else {}

    async def join(self, request: JoinRequest, provider: HostKeySource, report: Report) -> None:
        await asyncio.Event().wait()

    async def revoke(self, uid: str) -> None:
        return
