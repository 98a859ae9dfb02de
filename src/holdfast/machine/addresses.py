"""A loopback address for every pod, and for every stable name of one, known before the pod is there.

All of 127/8 reaches this machine, so workers of two jobs can listen on one port, each on its own address.
"""

import hashlib
import re
import socket

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
