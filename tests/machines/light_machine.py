"""Light machines: an SSH server each, on a loopback address of its own, and a kubeadm that makes the Node.

They cost no process, so that there may be hundreds. What a machine does not do as it should is a `Fault`.
"""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from enum import Enum, auto
from functools import partial
from ipaddress import IPv4Address

import asyncssh

from holdfast.cluster.protocol import Cluster
from holdfast.machines import kubeadm
from holdfast.times import format_time
from tests.machines import kubeadm_double
from tests.machines.kubeadm_double import Refused, Wanted

PORT = 22_022  # the same at each address; the kernel gives away none of these by itself
FIRST_ADDRESS = IPv4Address("127.64.0.1")


class Fault(Enum):
    SSH_NEVER_OPENS = auto()
    SSH_ANSWERS_NOTHING = auto()  # takes connections and says no word
    NO_HOST_KEY = auto()  # the guest agent tells none
    WRONG_HOST_KEY = auto()  # another one answers
    KEY_REFUSED = auto()  # the guest agent takes no keys from metadata
    NO_SUDO = auto()
    NO_KUBEADM = auto()
    KUBEADM_FAILS = auto()
    KUBEADM_HANGS = auto()
    CONNECTION_BREAKS = auto()  # amid kubeadm, which goes on
    OTHER_NAME = auto()
    NEVER_READY = auto()
    NO_GPU = auto()
    NO_NODE = auto()  # kubeadm ends well, and no Node comes


class LightMachine:
    """Serves from `boot` to `power_off`, or until the test ends."""

    def __init__(
        self,
        cluster: Cluster,
        wanted: Wanted,
        address: str,
        *,
        metadata: Mapping[str, str],
        now: Callable[[], datetime],
        gpus: int = 0,
        faults: frozenset[Fault] = frozenset(),
        port: int = PORT,
    ) -> None:
        self.address = address
        self.port = port
        self.faults = faults
        self.logins = 0
        self.commands: list[str] = []
        self.inputs: list[str] = []
        self.was_commanded, self.kubeadm_began = asyncio.Event(), asyncio.Event()
        self.kubeadm_goes_on = asyncio.Event()  # where it hangs
        self._cluster = cluster
        self.wanted = wanted
        self.metadata = metadata
        self._now = now
        self._gpus = gpus
        self._key = asyncssh.generate_private_key("ssh-ed25519")
        self._server: asyncssh.SSHAcceptor | asyncio.Server | None = None
        self._kubeadm: asyncio.Task[int] | None = None
        self._connections: set[asyncssh.SSHServerConnection] = set()
        self._has_joined = False

    @property
    def host_keys(self) -> tuple[str, ...]:
        """What the guest agent tells the cloud; with OS Login, or where guest attributes are off, it tells nothing."""
        settings = [self.metadata.get(name) for name in ("enable-guest-attributes", "enable-oslogin")]
        if settings != ["TRUE", "FALSE"] or Fault.NO_HOST_KEY in self.faults:
            return ()
        key = asyncssh.generate_private_key("ssh-ed25519") if Fault.WRONG_HOST_KEY in self.faults else self._key
        return (" ".join(key.export_public_key().decode().split()[:2]),)

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def login(self) -> tuple[str, str]:
        """User and public key, as the guest agent reads them."""
        user, _, line = self.metadata["ssh-keys"].partition(":")
        return user, " ".join(line.split()[:2])

    async def boot(self) -> None:
        """Raises `OSError` where the address is taken."""
        if Fault.SSH_NEVER_OPENS in self.faults:
            return
        if Fault.SSH_ANSWERS_NOTHING in self.faults:
            self._server = await asyncio.start_server(_say_nothing, self.address, self.port)
            return
        self._server = await asyncssh.listen(
            self.address,
            self.port,
            server_factory=lambda: _Door(self),
            server_host_keys=[self._key],
            process_factory=self._serve,
            encoding="utf-8",
            reuse_address=True,
        )

    async def power_off(self) -> None:
        """At once, with what runs on it; its disk is gone with it."""
        if self._kubeadm is not None:
            self._kubeadm.cancel()
            await asyncio.wait([self._kubeadm])
        for connection in tuple(self._connections):
            connection.abort()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        self._server = None

    def connected(self, connection: asyncssh.SSHServerConnection) -> None:
        self._connections.add(connection)

    def disconnected(self, connection: asyncssh.SSHServerConnection) -> None:
        self._connections.discard(connection)

    async def _serve(self, process: asyncssh.SSHServerProcess[str]) -> None:
        command, user = process.command or "", self.login[0]
        self.commands.append(command)
        self.was_commanded.set()
        if Fault.NO_SUDO in self.faults:
            process.stderr.write("sudo: a password is required\n")
            process.exit(1)
        elif command == kubeadm.preflight_command(user):
            process.stdout.write(f"Welcome to {self.wanted.node_name}\n{self._state()}\n")
            process.exit(0)
        elif command == kubeadm.join_command(user):
            await self._join(process)
        else:
            process.stderr.write(f"sh: 1: {command[:40]}: not found\n")
            process.exit(127)

    def _state(self) -> str:
        if self._has_joined:
            return "joined"
        if self._kubeadm is not None and not self._kubeadm.done():
            return "joining"
        return "no kubeadm" if Fault.NO_KUBEADM in self.faults else "ready"

    async def _join(self, process: asyncssh.SSHServerProcess[str]) -> None:
        text = await process.stdin.read()
        self.inputs.append(text)
        self.kubeadm_began.set()
        # It runs on when the connection breaks.
        self._kubeadm = asyncio.create_task(self._run_kubeadm(text, partial(_print, process)))
        status = await asyncio.shield(self._kubeadm)
        _print(process, f"kubeadm ended with exit status {status}")
        with suppress(OSError):
            process.exit(0)

    async def _run_kubeadm(self, text: str, echo: Callable[[str], None]) -> int:
        token = text.partition("tlsBootstrapToken: ")[2].split("\n")[0]
        echo("[preflight] Running pre-flight checks")
        if Fault.CONNECTION_BREAKS in self.faults:
            self.faults -= {Fault.CONNECTION_BREAKS}
            for connection in tuple(self._connections):
                connection.abort()
        if Fault.KUBEADM_HANGS in self.faults:
            echo(f"[discovery] waiting for the API server with token {token}")
            await self.kubeadm_goes_on.wait()
        if Fault.KUBEADM_FAILS in self.faults:
            echo("[kubelet-start] Starting the kubelet")
            echo(f'error execution phase kubelet-start: token "{token}" was refused')
            echo("To see the stack trace of this error execute with --v=5 or higher")
            return 1
        try:
            await kubeadm_double.check(self._cluster, text, self.wanted, self._now())
        except Refused as refused:
            echo(str(refused))
            return 1
        if Fault.NO_NODE not in self.faults:
            await self._register()
        self._has_joined = True
        echo("This node has joined the cluster")
        return 0

    async def _register(self) -> None:
        name = self.wanted.node_name if Fault.OTHER_NAME not in self.faults else f"localhost-{self.wanted.uid[-8:]}"
        body = kubeadm_double.node_body(
            self.wanted,
            name=name,
            gpus=0 if Fault.NO_GPU in self.faults else self._gpus,
            ready=Fault.NEVER_READY not in self.faults,
            now=format_time(self._now()),
        )
        await kubeadm_double.register(self._cluster, body)


class _Door(asyncssh.SSHServer):
    """Lets in whoever has the key of the metadata."""

    def __init__(self, machine: LightMachine) -> None:
        self._machine = machine

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._machine.connected(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self._machine.disconnected(self._connection)

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        user, line = self._machine.login
        given = " ".join(key.export_public_key().decode().split()[:2])
        return (username, given) == (user, line) and Fault.KEY_REFUSED not in self._machine.faults

    def auth_completed(self) -> None:
        self._machine.logins += 1


def _print(process: asyncssh.SSHServerProcess[str], line: str) -> None:
    """Whether anybody still reads it or not."""
    with suppress(OSError):
        process.stdout.write(f"{line}\n")


async def _say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


def addresses() -> Iterator[str]:
    """Loopback addresses, beginning where hardly any other process of this computer does."""
    for number in itertools.count(os.getpid() * 509):
        yield str(FIRST_ADDRESS + number % 2**21)


class LightMachines:
    """All machines of a test: each gets the next address that is free."""

    def __init__(self, cluster: Cluster, *, now: Callable[[], datetime], port: int = PORT) -> None:
        self.by_name: dict[str, LightMachine] = {}
        self.booted: list[LightMachine] = []
        self._cluster = cluster
        self._now = now
        self._port = port
        self._addresses = addresses()

    async def boot(
        self,
        wanted: Wanted,
        *,
        metadata: Mapping[str, str],
        gpus: int = 0,
        faults: frozenset[Fault] = frozenset(),
        address: str = "",
    ) -> LightMachine:
        """At that address, or at one that is free."""
        while True:
            machine = LightMachine(
                self._cluster,
                wanted,
                address or next(self._addresses),
                metadata=metadata,
                now=self._now,
                gpus=gpus,
                faults=faults,
                port=self._port,
            )
            try:
                await machine.boot()
            except OSError:
                if address:
                    raise
                continue
            self.by_name[wanted.node_name] = machine
            self.booted.append(machine)
            return machine

    def address(self) -> str:
        """One for a machine that is still to boot."""
        return next(self._addresses)

    async def power_off(self, name: str) -> None:
        await self.by_name.pop(name).power_off()

    async def close(self) -> None:
        for machine in self.booted:
            await machine.power_off()


@asynccontextmanager
async def light_machines(
    cluster: Cluster, *, now: Callable[[], datetime], port: int = PORT
) -> AsyncIterator[LightMachines]:
    machines = LightMachines(cluster, now=now, port=port)
    try:
        yield machines
    finally:
        await machines.close()
