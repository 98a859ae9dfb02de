"""Real nodes on this host: a control plane, three kubelets with containerd, a DNS server, and wires between them.

    with Lab(pace=QUICK).running() as lab:
        lab.plane.kubectl("get", "nodes")

The nodes and their pods are on a network of their own without a way out. This host is on it too, so that a test talks
to the API server directly. A lab that ends, in whatever way, leaves nothing behind: see machine.py and slots.py.
"""

import json
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from holdfast.cluster.kubernetes.client import KubernetesCluster, connect
from holdfast.cluster.kubernetes.kubeconfig import load_config
from tests.control_plane import build as control_plane
from tests.control_plane.certificates import Authority
from tests.control_plane.component import Component
from tests.control_plane.server import ADMINISTRATORS, ControlPlane
from tests.nodes import settings, slots
from tests.nodes.build import node_folder
from tests.nodes.cgroups import Groups
from tests.nodes.computer import Computer
from tests.nodes.images import write_holdfast
from tests.nodes.kubeadm_init import APISERVER_FLAG, allow_joins, controller_manager_flags
from tests.nodes.machine import Machine
from tests.nodes.network import Addresses, Switch
from tests.nodes.node import Around, Node
from tests.nodes.settings import AS_ALWAYS, USUAL, NodeSetup, Pace
from tests.nodes.store import Store, kept_store
from tests.nodes.until import until

NODES = ("n1", "n2", "n3")
SWITCH, MAKER = "switch", "maker"  # machines too; the second makes what the others mount, when that is not yet there


class Lab:
    """Starts in some ten seconds. What blocks is called through `asyncio.to_thread` where a loop must go on."""

    plane: ControlPlane
    nodes: dict[str, Node]
    dns: Component
    authority: Authority
    store: Store

    def __init__(
        self, *, pace: Pace = AS_ALWAYS, setups: Mapping[str, NodeSetup] | None = None, computers: int = 0
    ) -> None:
        """computers: how many machines may be made that are to join by kubeadm."""
        self._pace = pace
        self._spare = [f"m{number}" for number in range(1, computers + 1)]
        self._setups = setups or {}  # of the nodes that differ from the others
        self._gpus: dict[str, int] = {}
        self.guests: list[Component] = []  # what a test runs beside the lab
        self.computers: list[Computer] = []  # all that there ever were

    @contextmanager
    def running(self) -> Iterator["Lab"]:
        with slots.taken() as slot, ExitStack() as ending:
            self.folder = Path(tempfile.mkdtemp(prefix="holdfast-lab-"))
            self.addresses = Addresses(slot.number)
            names = (SWITCH, MAKER, *NODES, *self._spare)
            groups = {name: Groups(f"holdfast-lab-{slot.number}-{name}") for name in names}
            all_groups = [folder for one in groups.values() for folder in one.folders]
            slot.note(folder=self.folder, groups=all_groups, link=self.addresses.host_link)
            ending.callback(slot.clear)
            machines = {name: Machine(name, self.folder / name, one) for name, one in groups.items()}
            for machine in machines.values():
                ending.callback(machine.kill)
            self._machines = machines
            self._start(machines, ending)
            yield self

    @property
    def components(self) -> list[Component]:
        """Everything that has a log."""
        nodes = [component for node in self.nodes.values() for component in node.components]
        computers = [component for computer in self.computers for component in computer.components]
        return [*self.plane.components, self.dns, *nodes, *computers, *self.guests]

    @property
    def registries(self) -> Path:
        """Where the nodes' runtimes look up which registries they trust; they read it anew at every pull."""
        return self.folder / "registries"

    def kill_node(self, name: str) -> None:
        """Power loss: kubelet, runtime and containers end at once, without a word to anybody.

        The cable goes first: the kernel would close the connections of those that end, which a dead machine can't.
        """
        self._switch.unplug(name)
        self.nodes[name].kill()

    def start_node(self, name: str) -> None:
        """Power back: the node boots with the disk that it had, and is ready when this returns."""
        self.nodes[name].boot()
        self._join(self.nodes[name])
        self.await_ready(name)
        self.gpus(name, self._gpus.get(name, 0))  # a kubelet that starts anew forgets what it has no device plugin for

    def cut(self, name: str) -> None:
        """Pull the node's cable: all goes on running there, and reaches nobody outside the node."""
        self._switch.pull(name)

    def mend(self, name: str) -> None:
        self._switch.push(name)

    def stall(self, name: str) -> None:
        """All programs of the node stand still, as on a machine that is overloaded; its kernel answers as ever."""
        self.nodes[name].machine.run("kill", "-STOP", "--", "-1")

    def unstall(self, name: str) -> None:
        self.nodes[name].machine.run("kill", "-CONT", "--", "-1")
        for component in self.nodes[name].components:  # nsenter stops with what it runs, outside the node
            if component.pid is not None:
                os.kill(component.pid, signal.SIGCONT)

    def new_computer(
        self, metadata: Mapping[str, str], *, number: int | None = None, setup: NodeSetup = USUAL
    ) -> Computer:
        """A machine as a cloud makes it, with that metadata: it can be logged in to, and is no node yet.

        number: which of those that may be made, from 0; without it the next.
        """
        number = len(self.computers) if number is None else number
        node = Node(self._machines[self._spare[number]], self._number(number), self._around, setup)
        computer = Computer(node, metadata, self._around.programs)
        self.computers.append(computer)
        computer.boot()
        return computer

    def computer_address(self, number: int) -> str:
        """Of the one that is made with this number."""
        return self.addresses.node(self._number(number))

    @staticmethod
    def _number(number: int) -> int:
        """On the wire, after the nodes that are always there."""
        return len(NODES) + 1 + number

    def kill_computer(self, computer: Computer) -> None:
        """Its power goes, and it never comes back."""
        self._switch.unplug(computer.node.name)
        computer.kill()

    def gpus(self, name: str, count: int) -> None:
        """Offered as by a device plugin, but that no device comes with them."""
        self._gpus[name] = count
        offered = {"nvidia.com/gpu": str(count)}
        patch = json.dumps({"status": {"capacity": offered, "allocatable": offered}})
        self.plane.kubectl("patch", "node", name, "--subresource=status", "--type=merge", f"--patch={patch}")

    def await_ready(self, *names: str) -> None:
        wanted = names or NODES
        shown = r'{range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status} {end}'

        def ready() -> bool:
            seen = self.plane.kubectl("get", "nodes", f"--output=jsonpath={shown}").split()
            return {f"{name}=True" for name in wanted} <= set(seen)

        until(ready, f"{', '.join(wanted)} ready")

    @asynccontextmanager
    async def cluster(self) -> AsyncIterator[KubernetesCluster]:
        """Our own client, as the administrator."""
        config = load_config(str(self.plane.kubeconfig), environ={})
        cluster = connect(config, rng=Random(), now=lambda: datetime.now(UTC))
        try:
            yield cluster
        finally:
            await cluster.close()

    def _start(self, machines: dict[str, Machine], ending: ExitStack) -> None:
        self._switch = Switch(machines[SWITCH], self.addresses)
        self._switch.machine.start()
        self._switch.set_up()
        self.authority = authority = Authority(self.folder, datetime.now(UTC))
        self.plane = self._control_plane(authority)
        ending.callback(self.plane.kill)
        with ThreadPoolExecutor(len(NODES) + 2) as pool:
            starting, preparing = pool.submit(self.plane.start), pool.submit(self._prepare, machines[MAKER])
            self.store, image = preparing.result()
            self._around = around = Around(
                programs=node_folder(),
                authority=authority,
                addresses=self.addresses,
                switch=self._switch,
                store=self.store.folder,
                image=image,
                registries=self.registries,
                pace=self._pace,
            )
            self.nodes = {
                name: Node(machines[name], number, around, self._setups.get(name, USUAL))
                for number, name in enumerate(NODES, start=1)
            }
            for node in self.nodes.values():
                ending.callback(node.kill)
            for _ in pool.map(Node.boot, self.nodes.values()):
                pass
            starting.result()
            self.dns = self._name_server()
            ending.callback(self.dns.kill)
            self.dns.start()
            for _ in pool.map(self._join, self.nodes.values()):
                pass
        self.await_ready()
        if self._spare:
            allow_joins(self.plane, node_folder() / "kubeadm", self.folder, self.addresses, self._pace)

    def _prepare(self, maker: Machine) -> tuple[Store, Path]:
        """The store that nodes begin with, and the archive of the image that is not in it."""
        store = kept_store(maker, node_folder())
        return store, write_holdfast(self.folder / "holdfast.tar", store.python)

    def _join(self, node: Node) -> None:
        node.join(self.plane.user(f"system:node:{node.name}", "system:nodes"))

    def _control_plane(self, authority: Authority) -> ControlPlane:
        to_kubelets = authority.user("api-server", (ADMINISTRATORS,))
        flags = {
            "kube-apiserver": [
                "--authorization-mode=Node",
                f"--kubelet-certificate-authority={authority.file}",
                f"--kubelet-client-certificate={to_kubelets.certificate}",
                f"--kubelet-client-key={to_kubelets.key}",
                APISERVER_FLAG,
                *self._pace.apiserver,
            ],
            "kube-controller-manager": [*self._pace.controller_manager, *controller_manager_flags(authority)],
        }
        programs, address = control_plane.binary_folder(), self.addresses.host
        return ControlPlane(self.folder / "plane", programs, flags=flags, address=address, authority=authority)

    def _name_server(self) -> Component:
        corefile = self._switch.machine.folder / "Corefile"
        corefile.write_text(settings.corefile(self.plane.user("dns", ADMINISTRATORS)))
        command = [str(node_folder() / "coredns"), f"-conf={corefile}"]
        return self._switch.machine.service("coredns", command, self._names_are_served)

    def _names_are_served(self) -> bool:
        try:
            socket.create_connection((self.addresses.dns, 53), timeout=1).close()
        except OSError:
            return False
        return True
