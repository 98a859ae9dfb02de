"""Which user owns the other end of a connection, on a node that several users share.

The pods of a local node share its network, so a loopback address alone proves nothing. Linux lists the owner of every
socket in /proc/net/tcp. On Kubernetes a pod has its own network, and its containers may run as different users: there
the owner is not checked.
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
    """Whether the client of a connection runs as the user of this process, or as root.

    A socket that its program has closed shows no owner: its request is rejected.
    """
    ends = (_address(*client), _address(*server))
    return any(
        sock.uid in (os.geteuid(), 0)
        for sock in _sockets()
        if (sock.local, sock.remote) == ends and sock.state == ESTABLISHED and sock.inode
    )


def is_own_server(host: str, port: int) -> bool:
    """Whether every server that listens at the address, if any, runs as the user of this process."""
    address, _ = _address(host, port)
    return all(
        sock.uid == os.geteuid()
        for sock in _sockets()
        if sock.state == LISTENING
        and sock.local[1] == port
        and (sock.local[0] == address or sock.local[0].is_unspecified)
    )


def _sockets() -> Iterator[_Socket]:
    for table in TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue  # a kernel without IPv6 has no tcp6 table
        for line in lines:
            fields = line.split()
            yield _Socket(_read(fields[1]), _read(fields[2]), fields[3], int(fields[7]), int(fields[9]))


def _read(text: str) -> Address:
    """An address as the kernel writes it: 32-bit words in the byte order of the host."""
    digits, _, port = text.partition(":")
    words = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return _address(socket.inet_ntop(family, packed), int(port, 16))


def _address(host: str, port: int) -> Address:
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address, port
