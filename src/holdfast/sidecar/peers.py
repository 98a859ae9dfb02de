"""Whose the other end of a connection is, on a machine that several users share.

The pods of one machine share its network, so that a loopback address alone proves nothing. Linux lists the owner of
every socket in /proc/net/tcp. On Kubernetes a pod has its own network, and its containers may run as different users:
nothing is asked there.
"""

import os
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple, TypeAlias

Address: TypeAlias = tuple[IPv4Address | IPv6Address, int]

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED, LISTENING = "01", "0A"


class _Socket(NamedTuple):
    local: Address
    remote: Address
    state: str
    uid: int
    inode: int


def is_own_client(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Whether the program at the client's end of a connection runs as this process' user, or as root.

    A socket that its program has closed shows no owner: its request is not taken.
    """
    ends = (_address(*client), _address(*server))
    return any(
        each.uid in (os.geteuid(), 0)
        for each in _sockets()
        if (each.local, each.remote) == ends and each.state == ESTABLISHED and each.inode
    )


def is_own_server(host: str, port: int) -> bool:
    """Whether all that listens at the address, if anything, runs as this process' user."""
    asked, _ = _address(host, port)
    return all(
        each.uid == os.geteuid()
        for each in _sockets()
        if each.state == LISTENING
        and each.local[1] == port
        and (each.local[0] == asked or each.local[0].is_unspecified)
    )


def _sockets() -> Iterator[_Socket]:
    for table in TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue  # without IPv6
        for line in lines:
            fields = line.split()
            yield _Socket(_read(fields[1]), _read(fields[2]), fields[3], int(fields[7]), int(fields[9]))


def _read(text: str) -> Address:
    """An address as the kernel writes it: words of four bytes in the machine's order."""
    digits, _, port = text.partition(":")
    words = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return _address(socket.inet_ntop(family, packed), int(port, 16))


def _address(host: str, port: int) -> Address:
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address, port
