"""The interface of a cloud: machines by name and zone.

A provider serves one project with one credential. Methods that change something are refused unless this operator leads.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from holdfast.api.spotinstancevm import InstanceState


class MachineSpec(Struct, frozen=True, kw_only=True):
    """All that a machine is made from. An empty value leaves the choice to the cloud."""

    name: str
    zone: str
    uid: str
    """Of the ProvisionedInstance: a label of the machine, and what repeated requests are recognized by."""
    cluster_uid: str
    job: str = ""
    image: str
    machine_type: str
    gpu_type: str = ""
    gpu_count: int = 0
    disk_size_gb: int = 100
    disk_type: str = "pd-standard"
    network: str = ""
    subnetwork: str = ""
    external_ip: bool = True
    network_tags: tuple[str, ...] = ()
    service_account: str = ""
    min_cpu_platform: str = ""
    preemptible: bool = True
    preemption_notice_s: int | None = None
    max_run_duration_s: int | None = None
    metadata: Mapping[str, str] = {}


class Machine(Struct, frozen=True, kw_only=True):
    """A machine as the cloud shows it now."""

    name: str
    zone: str
    id: str
    """The cloud's own number: another machine of the same name has another one."""
    state: InstanceState | None = None
    """None for a state that holdfast does not know."""
    internal_ip: str = ""
    external_ip: str = ""
    created_at: datetime | None = None
    uid: str = ""
    cluster_uid: str = ""


class MachineList(Struct, frozen=True, kw_only=True):
    machines: tuple[Machine, ...] = ()
    unreachable: frozenset[str] = frozenset()
    """Zones that did not answer: a machine that is not listed may be there."""


class Provider(Protocol):
    """Every method raises a `ProviderError`."""

    async def launch(self, spec: MachineSpec) -> Machine:
        """The machine of that name, made if it was never made; returns once the cloud has accepted it for good.

        An earlier call is found by the machine and by its operation, so that a call may be repeated after a crash.
        Raises `MachineEnded` when an earlier call made the machine and it is gone since.
        """
        ...

    async def get(self, zone: str, name: str) -> Machine:
        """Raises `MachineNotFound`."""
        ...

    async def list(self, cluster_uid: str) -> MachineList:
        """The machines of that cluster in all zones, with few requests, whatever their number."""
        ...

    async def delete(self, zone: str, name: str, uid: str) -> None:
        """Returns once the machine is gone; one that is gone already, or was never made, is no error."""
        ...

    async def is_preempted(self, zone: str, name: str, machine_id: str) -> bool:
        """Whether the cloud took this machine back, so that nobody deleted it."""
        ...

    async def zones(self, region: str = "") -> tuple[str, ...]:
        """The zones that are up; of all regions without one."""
        ...

    async def host_keys(self, zone: str, name: str) -> tuple[str, ...]:
        """The public SSH host keys that the machine has published, as in known_hosts; empty without any."""
        ...

    async def close(self) -> None: ...
