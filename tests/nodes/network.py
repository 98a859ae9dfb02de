"""The wires between machines: one switch, a machine too, to which nodes and this host are plugged.

There is no way out: nobody has a default route, and the switch has no port but these.
"""

import subprocess
import sys
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import NamedTuple

from tests.nodes.machine import CommandFailed, Machine, program

BRIDGE = "switch"
WIDTH = 16


class Addresses(NamedTuple):
    """Those of one lab, the `lab`th on this host."""

    lab: int

    @property
    def host(self) -> str:
        """This host's, where the API server and the operator listen."""
        return self._address(0, 1)

    @property
    def dns(self) -> str:
        return self._address(0, 2)

    def node(self, number: int) -> str:
        return self._address(0, 10 + number)

    @property
    def everyone(self) -> str:
        return f"{self._address(0, 0)}/{WIDTH}"

    def pods(self, number: int) -> tuple[str, str]:
        """The first and the last that a node gives to pods."""
        return self._address(number, 1), self._address(number, 254)

    @property
    def host_link(self) -> str:
        """This host's end of the cable to the switch."""
        return f"holdfast{self.lab}"

    def hardware(self, number: int) -> str:
        """A node keeps its hardware address when it comes back, so that nobody looks for it at the old one."""
        return f"02:68:6f:6c:{self.lab:02x}:{number:02x}"

    def _address(self, third: int, fourth: int) -> str:
        return f"10.{200 + self.lab}.{third}.{fourth}"


class Switch:
    """Plugs machines together; a cable that is pulled can be plugged in again."""

    def __init__(self, machine: Machine, addresses: Addresses) -> None:
        self.machine = machine
        self._addresses = addresses

    def set_up(self) -> None:
        """The switch has an address of its own, on which the DNS server listens; the host has one on its port."""
        here = self._addresses
        self._ip(f"link add {BRIDGE} type bridge", f"address add {here.dns}/{WIDTH} dev {BRIDGE}")
        self._ip(f"link set {BRIDGE} up")
        _ip(f"link add {here.host_link} type veth peer name host netns {self.machine.first}")
        _ip(f"address add {here.host}/{WIDTH} dev {here.host_link}", f"link set {here.host_link} up")
        self._ip(f"link set host master {BRIDGE} up")

    def plug_in(self, node: Machine, number: int) -> None:
        """Connect a node through a bridge of its own, to which it will also connect its pods."""
        name, uplink = node.name, "uplink"
        _ip(f"link add {uplink} netns {node.first} type veth peer name {name} netns {self.machine.first}")
        self._ip(f"link set {name} master {BRIDGE} up")
        address, hardware = self._addresses.node(number), self._addresses.hardware(number)
        lines = (
            f"link add {BRIDGE} address {hardware} type bridge",
            f"address add {address}/{WIDTH} dev {BRIDGE}",
            f"link set {BRIDGE} up",
            f"link set {uplink} master {BRIDGE} up",
        )
        node.run(program("ip"), "-batch", "-", text="\n".join(lines))

    def unplug(self, name: str) -> None:
        """Take the node's cable away for good; with a new start it gets another."""
        self._ip(f"link delete {name}")

    def pull(self, name: str) -> None:
        self._ip(f"link set {name} down")

    def push(self, name: str) -> None:
        self._ip(f"link set {name} up")

    def _ip(self, *lines: str) -> None:
        self.machine.run(program("ip"), "-batch", "-", text="\n".join(lines))


def remove_link(name: str) -> None:
    """Remove a link of this host, unless it goes by itself, as it does some time after its switch."""
    try:
        _ip(f"link delete {name}")
    except CommandFailed:
        if Path("/sys/class/net", name).exists():
            raise


def is_in_use(network: str, routes: str) -> bool:
    """Whether this host reaches something else there; `routes` is what /proc/net/route says."""
    known = [_network(*line.split()[1:8:6]) for line in routes.splitlines()[1:]]
    return any(one.overlaps(IPv4Network(network)) for one in known if one.prefixlen > 0)


def _network(address: str, mask: str) -> IPv4Network:
    """The kernel writes numbers as this machine keeps them in memory, in hexadecimal."""
    parts = (IPv4Address(int(part, 16).to_bytes(4, sys.byteorder)) for part in (address, mask))
    return IPv4Network("/".join(map(str, parts)))


def _ip(*lines: str) -> None:
    command = [program("ip"), "-batch", "-"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CommandFailed(f"`ip {'; '.join(lines)}` failed: {done.stderr.strip()}")
