"""A machine as a cloud makes it: it has a container runtime and an SSH server, and is no node yet."""

import socket
from collections.abc import Mapping
from pathlib import Path

from tests.control_plane.component import Component
from tests.nodes.guest import Guest
from tests.nodes.node import Node

SSH_PORT = 22


class Computer:
    """Runs from `boot` until its power goes. What kubeadm writes is in layers of its own."""

    def __init__(self, node: Node, metadata: Mapping[str, str], programs: Path) -> None:
        self.node = node
        self.address = node.address
        self._guest = Guest(node.machine, node.address, metadata, programs)
        self.ssh_server: Component | None = None

    @property
    def host_key(self) -> str:
        return self._guest.host_key

    @property
    def components(self) -> list[Component]:
        return [*self.node.components, *([self.ssh_server] if self.ssh_server else [])]

    @property
    def kubelet_settings(self) -> str:
        """What kubeadm has written for the kubelet."""
        return (self.node.kubelet_folder / "config.yaml").read_text()

    @property
    def kubelet_log(self) -> str:
        log = self.node.machine.folder / "overlays" / "log" / "upper" / "kubelet.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def boot(self) -> None:
        """Returns when it can be logged in to."""
        self.node.boot()
        self._guest.set_up()
        self.ssh_server = self.node.machine.service("sshd", self._guest.ssh_server, self._lets_in)
        self.ssh_server.start()

    def kill(self) -> None:
        """All that runs on it ends at once."""
        self.node.kill()
        if self.ssh_server is not None:
            self.ssh_server.kill()

    def _lets_in(self) -> bool:
        try:
            with socket.create_connection((self.address, SSH_PORT), timeout=1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False
