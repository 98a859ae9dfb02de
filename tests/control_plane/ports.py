"""Free loopback ports for servers that are started again on the same port."""

import random
import socket
from pathlib import Path

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Distinct ports on which nothing listens.

    They lie below the range from which the kernel gives ports to clients. A port from within it could be taken,
    while its server is down, by the very client that tries to reach that server.
    """
    highest = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32768
    ports: list[int] = []
    for port in random.SystemRandom().sample(range(highest // 2, highest), k=highest // 2):
        if len(ports) == count:
            break
        if _is_free(port):
            ports.append(port)
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Go's listeners do: a port whose last connections are still fading away is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
