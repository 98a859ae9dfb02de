"""State that all pods of this node share, and the context of one container."""

import hashlib
import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import aiohttp
from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.cluster.protocol import Cluster
from holdfast.local.kubelet.devices import Cgroups, GpuAllocator
from holdfast.local.kubelet.environment import NODE_ID, POD_UID, IssueToken, PodContext, expand
from holdfast.local.kubelet.objects import PodRejected, RunnableContainer, RunnablePodSpec
from holdfast.times import format_time

# The kubelet runs the command of a container directly on the host, and no image.

INTERPRETERS = ("python", "python3")
OURSELVES = "holdfast"


class CommandResolver:
    """Resolves the command of a container; `default_image` is the only image whose command is known."""

    def __init__(self, default_image: str = "", default_command: Sequence[str] = ()) -> None:
        self._default_image = default_image
        self._default_command = tuple(default_command)

    def check(self, spec: RunnablePodSpec) -> None:
        """Raises `PodRejected` when a container has no command that this node could run."""
        for container in (*spec.init_containers, *spec.containers):
            if not self._command(container):
                raise PodRejected(
                    f"container {container.name} has the image {container.image or '(none)'} and no command: this "
                    "machine runs commands, not images; write the command to run, or use a cluster",
                    reason="ImageNotRun",
                )

    def argv(
        self, container: RunnableContainer, variables: Mapping[str, str], rewrite: Callable[[str], str]
    ) -> tuple[str, ...]:
        command = [expand(word, variables) for word in (*self._command(container), *container.args)]
        return tuple(own_interpreter([rewrite(word) for word in command]))

    def _command(self, container: RunnableContainer) -> tuple[str, ...]:
        if not container.command and container.image and container.image == self._default_image:
            return self._default_command
        return container.command


def own_interpreter(command: list[str]) -> list[str]:
    """python means the interpreter of holdfast, with its installed packages; holdfast means this holdfast."""
    program, arguments = command[:1], command[1:]
    if program == [OURSELVES]:
        return [sys.executable, "-m", OURSELVES, *arguments]
    return [sys.executable, *arguments] if program and program[0] in INTERPRETERS else command


# A loopback address for every pod and for every stable name of a pod, known before the pod exists.
#
# All of 127/8 reaches this host, so workers of two jobs can listen on the same port, each on its own address.

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
# {hostname}.{subdomain}.{namespace}.svc, as headless Services name their pods.
_STABLE_NAME = re.compile(rf"(?<![-a-z0-9.])({_LABEL}\.{_LABEL}\.{_LABEL})\.svc(?:\.cluster\.local)?(?![-a-z0-9.])")
# 127.1.0.1 to 127.254.255.254: outside of 127.0, which distributions use.
_SECOND, _THIRD, _FOURTH = 254, 256, 254
_PORTS = 65536


class PodAddresses:
    """Addresses by stable name, reserved while a pod has the name or refers to the name."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._by_name: dict[str, str] = {}
        self._names: dict[str, str] = {}  # address → name
        self._holders: dict[str, set[str]] = {}  # name → pods
        self._ports: dict[tuple[str, int], int] = {}  # (address, requested port) → assigned port

    def of_pod(self, holder: str, *, namespace: str, hostname: str, subdomain: str) -> str:
        """The address for the stable name of a pod, reserved until `holder` (a pod uid) releases it."""
        return self._reserve(holder, f"{hostname}.{subdomain}.{namespace}")

    def resolve(self, holder: str, text: str) -> str:
        """`text` with every stable name replaced by its pod's address."""
        return _STABLE_NAME.sub(lambda match: self._reserve(holder, match[1]), text)

    def port(self, address: str, wanted: int) -> int:
        """A port that is unique on the host for the pod of that address: `wanted`, or the next free port.

        Every pod gets the same port until the last pod has released the address.
        """
        if address not in self._names:
            return wanted
        if (address, wanted) not in self._ports:
            assigned = set(self._ports.values())
            free = (port for port in range(wanted, _PORTS) if port not in assigned and _is_free(port))
            self._ports[address, wanted] = next(free, wanted)
        return self._ports[address, wanted]

    def release(self, holder: str) -> None:
        for name, holders in list(self._holders.items()):
            holders.discard(holder)
            if not holders:
                del self._holders[name]
                del self._names[self._by_name.pop(name)]
        self._ports = {requested: port for requested, port in self._ports.items() if requested[0] in self._names}

    def _reserve(self, holder: str, name: str) -> str:
        if name not in self._by_name:
            address = self._free_address(name)
            self._by_name[name], self._names[address] = address, name
        self._holders.setdefault(name, set()).add(holder)
        return self._by_name[name]

    def _free_address(self, name: str) -> str:
        """A hash of the node id and the name; on a collision with another name, the next of a fixed sequence."""
        attempt = 0
        while (address := candidate(self._node_id, name, attempt)) in self._names:
            attempt += 1
        return address


def candidate(node_id: str, name: str, attempt: int) -> str:
    digest = hashlib.sha256(f"{node_id}\n{name}\n{attempt}".encode()).digest()
    number = int.from_bytes(digest[:8], "big")
    number, fourth = divmod(number, _FOURTH)
    number, third = divmod(number, _THIRD)
    return f"127.{1 + number % _SECOND}.{third}.{1 + fourth}"


def _is_free(port: int) -> bool:
    """Whether a process could listen on the port at all addresses now."""
    with socket.socket() as probe:
        # As listeners do: a port whose last connections are in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


Now: TypeAlias = Callable[[], datetime]
HOST_IP = "127.0.0.1"


def claim_folder(data: Path, claim: Key) -> Path:
    """The folder behind a claim; `data` is the data folder of the cluster."""
    return data / "volumes" / claim.namespace / claim.name


class SharedHost(Struct, frozen=True, kw_only=True):
    """What all nodes of this computer have in common: their pods meet, and use the same claims."""

    addresses: PodAddresses
    volumes: Path


class Host(Struct, frozen=True, kw_only=True):
    cluster: Cluster
    identity: str
    data: Path
    volumes: Path
    allocatable: Mapping[str, str]
    addresses: PodAddresses
    gpus: GpuAllocator
    commands: CommandResolver
    http: aiohttp.ClientSession
    now: Now
    cgroups: Cgroups | None = None
    issue_token: IssueToken | None = None

    @property
    def pods(self) -> Path:
        return self.data / "pods"

    def folder(self, uid: str) -> Path:
        return self.pods / uid

    def claim(self, claim: Key) -> Path:
        return self.volumes / claim.namespace / claim.name

    def logs(self, uid: str) -> Path:
        return self.folder(uid) / "logs"

    def time(self) -> str:
        """The current time in the format of metav1.Time."""
        return format_time(self.now())


class ContainerContext(Struct, frozen=True, kw_only=True):
    """The context of one container: its host, its pod, its volumes and its devices."""

    host: Host
    pod_context: PodContext
    volumes: Mapping[str, Path]
    devices: tuple[int, ...] = ()

    @property
    def uid(self) -> str:
        return self.pod_context.pod.metadata.uid

    @property
    def folder(self) -> Path:
        return self.host.folder(self.uid)

    @property
    def marker(self) -> dict[str, str]:
        return {NODE_ID: self.host.identity, POD_UID: self.uid}
