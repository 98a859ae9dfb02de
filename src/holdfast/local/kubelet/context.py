"""What all pods of this machine share, and what one container finds around it."""

import hashlib
import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import aiohttp
from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.cluster.protocol import Cluster
from holdfast.local.kubelet.devices import Cgroups, Gpus
from holdfast.local.kubelet.environment import MACHINE, POD_UID, IssueToken, PodContext, expand
from holdfast.local.kubelet.errors import PodRejected
from holdfast.local.kubelet.objects import Container, PodSpec

# What is run for a container: its command, on this machine. No image is.

INTERPRETERS = ("python", "python3")
OURSELVES = "holdfast"


class CommandResolver:
    """The rule, with the one image whose command is known."""

    def __init__(self, default_image: str = "", default_command: Sequence[str] = ()) -> None:
        self._default_image = default_image
        self._default_command = tuple(default_command)

    def check(self, spec: PodSpec) -> None:
        """Raises `Refused` when a container has nothing that this machine could run."""
        for container in (*spec.init_containers, *spec.containers):
            if not self._written(container):
                raise PodRejected(
                    f"container {container.name} has the image {container.image or '(none)'} and no command: this "
                    "machine runs commands, not images; write the command to run, or use a cluster",
                    reason="ImageNotRun",
                )

    def argv(
        self, container: Container, variables: Mapping[str, str], rewrite: Callable[[str], str]
    ) -> tuple[str, ...]:
        command = [expand(word, variables) for word in (*self._written(container), *container.args)]
        return tuple(own_interpreter([rewrite(word) for word in command]))

    def _written(self, container: Container) -> tuple[str, ...]:
        if not container.command and container.image and container.image == self._default_image:
            return self._default_command
        return container.command


def own_interpreter(command: list[str]) -> list[str]:
    """python means the interpreter that holdfast runs in, with what is installed there; holdfast means this one."""
    program, arguments = command[:1], command[1:]
    if program == [OURSELVES]:
        return [sys.executable, "-m", OURSELVES, *arguments]
    return [sys.executable, *arguments] if program and program[0] in INTERPRETERS else command


# A loopback address for every pod, and for every stable name of one, known before the pod is there.
#
# All of 127/8 reaches this machine, so workers of two jobs can listen on one port, each on its own address.

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
# {hostname}.{subdomain}.{namespace}.svc, as headless Services name their pods.
_STABLE_NAME = re.compile(rf"(?<![-a-z0-9.])({_LABEL}\.{_LABEL}\.{_LABEL})\.svc(?:\.cluster\.local)?(?![-a-z0-9.])")
# 127.1.0.1 to 127.254.255.254: beside what distributions use of 127.0.
_SECOND, _THIRD, _FOURTH = 254, 256, 254
_PORTS = 65536


class PodAddresses:
    """Which name has which address, as long as a pod has that name or mentions it."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._by_name: dict[str, str] = {}
        self._names: dict[str, str] = {}  # address → name
        self._holders: dict[str, set[str]] = {}  # name → pods
        self._ports: dict[tuple[str, int], int] = {}  # address, port asked for → port given

    def of_pod(self, holder: str, *, namespace: str, hostname: str, subdomain: str) -> str:
        """The address of the pod of that stable name, held until `holder` (a uid) lets go of it."""
        return self._hold(holder, f"{hostname}.{subdomain}.{namespace}")

    def resolve(self, holder: str, text: str) -> str:
        """`text` with every stable name replaced by its pod's address."""
        return _STABLE_NAME.sub(lambda match: self._hold(holder, match[1]), text)

    def port(self, address: str, wanted: int) -> int:
        """A port of the whole machine for the pod of that address: `wanted`, or the next one that nobody has.

        Every pod that asks gets the same answer, until the last one has let go of the address.
        """
        if address not in self._names:
            return wanted
        if (address, wanted) not in self._ports:
            given = set(self._ports.values())
            free = (port for port in range(wanted, _PORTS) if port not in given and _is_free(port))
            self._ports[address, wanted] = next(free, wanted)
        return self._ports[address, wanted]

    def release(self, holder: str) -> None:
        for name, holders in list(self._holders.items()):
            holders.discard(holder)
            if not holders:
                del self._holders[name]
                del self._names[self._by_name.pop(name)]
        self._ports = {asked: port for asked, port in self._ports.items() if asked[0] in self._names}

    def _hold(self, holder: str, name: str) -> str:
        if name not in self._by_name:
            address = self._free(name)
            self._by_name[name], self._names[address] = address, name
        self._holders.setdefault(name, set()).add(holder)
        return self._by_name[name]

    def _free(self, name: str) -> str:
        """A function of the machine and the name; only where another name has it already, the next of a fixed row."""
        turn = 0
        while (address := candidate(self._machine, name, turn)) in self._names:
            turn += 1
        return address


def candidate(machine: str, name: str, turn: int) -> str:
    digest = hashlib.sha256(f"{machine}\n{name}\n{turn}".encode()).digest()
    number = int.from_bytes(digest[:8], "big")
    number, fourth = divmod(number, _FOURTH)
    number, third = divmod(number, _THIRD)
    return f"127.{1 + number % _SECOND}.{third}.{1 + fourth}"


def _is_free(port: int) -> bool:
    """Whether a process could listen on it at all addresses now."""
    with socket.socket() as probe:
        # As listeners do: a port whose last connections are still fading away is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


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
