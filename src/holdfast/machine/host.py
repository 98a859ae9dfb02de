"""What all pods of this machine share, and what one container finds around it."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import aiohttp
from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.cluster.protocol import Cluster
from holdfast.machine.addresses import PodAddresses
from holdfast.machine.cgroups import Cgroups
from holdfast.machine.command import CommandResolver
from holdfast.machine.downward import PodContext
from holdfast.machine.environment import MACHINE, POD_UID
from holdfast.machine.gpus import Gpus
from holdfast.machine.sources import IssueToken

Now: TypeAlias = Callable[[], datetime]
HOST_IP = "127.0.0.1"


def claim_folder(data: Path, claim: Key) -> Path:
    """What a claim's pods find in it; `data` is the folder of this cluster."""
    return data / "volumes" / claim.namespace / claim.name


class Host(Struct, frozen=True, kw_only=True):
    cluster: Cluster
    identity: str
    data: Path
    allocatable: Mapping[str, str]
    addresses: PodAddresses
    gpus: Gpus
    commands: CommandResolver
    http: aiohttp.ClientSession
    now: Now
    cgroups: Cgroups | None = None
    issue_token: IssueToken | None = None

    @property
    def pods(self) -> Path:
        return self.data / "pods"

    @property
    def volumes(self) -> Path:
        return self.data / "volumes"

    def folder(self, uid: str) -> Path:
        return self.pods / uid

    def claim(self, claim: Key) -> Path:
        return claim_folder(self.data, claim)

    def logs(self, uid: str) -> Path:
        return self.folder(uid) / "logs"

    def time(self) -> str:
        """As metav1.Time is written."""
        return self.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ContainerContext(Struct, frozen=True, kw_only=True):
    """Of one container: its host, its pod, and what it was given."""

    host: Host
    place: PodContext
    volumes: Mapping[str, Path]
    devices: tuple[int, ...] = ()

    @property
    def uid(self) -> str:
        return self.place.pod.metadata.uid

    @property
    def folder(self) -> Path:
        return self.host.folder(self.uid)

    @property
    def marker(self) -> dict[str, str]:
        return {MACHINE: self.host.identity, POD_UID: self.uid}
