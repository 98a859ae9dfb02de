"""containerd in a machine."""

import os
import time
from pathlib import Path

from tests.control_plane.component import Component
from tests.nodes import settings
from tests.nodes.criu import criu_program
from tests.nodes.machine import CommandFailed, Machine, program
from tests.nodes.provision import plugin_folder
from tests.nodes.settings import USUAL, NodeSetup


class Runtime:
    """`store` is what it keeps from one boot of its machine to the next; `registries` says whom it trusts."""

    def __init__(
        self, machine: Machine, programs: Path, store: Path, registries: Path, setup: NodeSetup = USUAL
    ) -> None:
        self._machine = machine
        self._programs = programs
        self._store = store
        self._registries = registries
        self._setup = setup
        self.server: Component | None = None

    def start(self) -> None:
        """Start it, and return when it answers."""
        file = self._machine.folder / "containerd.toml"
        plugins = plugin_folder()
        assert plugins, "the plugins that connect pods are not installed: run `make nodes`"
        file.write_text(
            settings.containerd(
                self._store, plugins, self._machine.folder / "cni", self._registries, restore=self._setup.restore
            )
        )
        # It looks programs up by name: its shim lies beside it.
        criu = f"{criu_program().parent}:" if self._setup.criu else ""
        path = f"PATH={self._programs}:{criu}{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
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
