"""containerd in a machine."""

import os
import time
from pathlib import Path

from tests.control_plane.component import Component
from tests.nodes import settings
from tests.nodes.machine import CommandFailed, Machine, program
from tests.nodes.provision import plugin_folder


class Runtime:
    """`store` is what it keeps from one boot of its machine to the next."""

    def __init__(self, machine: Machine, programs: Path, store: Path) -> None:
        self._machine = machine
        self._programs = programs
        self._store = store
        self.server: Component | None = None

    def start(self) -> None:
        """Start it, and return when it answers."""
        file = self._machine.folder / "containerd.toml"
        plugins = plugin_folder()
        assert plugins, "the plugins that connect pods are not installed: run `make nodes`"
        file.write_text(settings.containerd(self._store, plugins, self._machine.folder / "cni"))
        # It looks programs up by name: its shim lies beside it.
        path = f"PATH={self._programs}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        command = [program("env"), path, str(self._programs / "containerd"), f"--config={file}"]
        self.server = self._machine.service("containerd", command, self._answers)
        self.server.start()

    def import_image(self, archive: Path) -> None:
        self._ctr("--namespace=k8s.io", "images", "import", str(archive))

    def _answers(self) -> bool:
        try:
            self._ctr("version")
        except CommandFailed:
            time.sleep(0.1)
            return False
        return True

    def _ctr(self, *command: str) -> None:
        self._machine.run(str(self._programs / "ctr"), f"--address={settings.SOCKET}", *command)
