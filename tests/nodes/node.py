"""A real node: a machine with containerd and a kubelet."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.control_plane.certificates import Authority, Pair
from tests.control_plane.component import Component
from tests.control_plane.probe import answers
from tests.nodes import settings
from tests.nodes.machine import Machine
from tests.nodes.network import Addresses, Switch
from tests.nodes.runtime import Runtime
from tests.nodes.settings import NodeSetup, Pace
from tests.nodes.store import copy_store, mount_store

KUBELET_FOLDER = Path("/var/lib/kubelet")


class Around(NamedTuple):
    """What a node finds in its lab."""

    programs: Path
    authority: Authority
    addresses: Addresses
    switch: Switch
    store: Path  # what its runtime begins with
    image: Path  # what is imported into that
    registries: Path  # whom its runtime trusts
    pace: Pace


class Node:
    """Keeps its images, its kubelet's folder and its addresses when it loses its power, like any node."""

    def __init__(self, machine: Machine, number: int, around: Around, setup: NodeSetup) -> None:
        self.machine = machine
        self.name = machine.name
        self.address = around.addresses.node(number)
        self._number = number
        self._around = around
        self._setup = setup
        self._store = machine.folder / "containerd"
        self._runtime = Runtime(machine, around.programs, self._store, around.registries, setup)
        self._kubelet: Component | None = None
        self._settings = machine.folder / "kubelet.yaml"
        self._write_settings()

    @property
    def components(self) -> list[Component]:
        """Those that run, or ran last."""
        return [one for one in (self._runtime.server, self._kubelet) if one is not None]

    def boot(self) -> None:
        """Power on, plugged in, with a container runtime that has the images; no kubelet yet."""
        self.machine.start()
        self._around.switch.plug_in(self.machine, self._number)
        is_new = not self._store.exists()
        if is_new:
            copy_store(self._around.store, self._store)
        mount_store(self._around.store, self._store, self.machine)
        self._runtime.start()
        if is_new:
            self._runtime.import_image(self._around.image)

    def join(self, kubeconfig: Path) -> None:
        """Start the kubelet, and return when it is healthy."""
        command = [
            str(self._around.programs / "kubelet"),
            f"--config={self._settings}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            f"--root-dir={KUBELET_FOLDER}",
            f"--cert-dir={KUBELET_FOLDER / 'pki'}",
        ]
        ready = partial(answers, settings.HEALTH_PORT, "/healthz", host=self.address)
        self._kubelet = self.machine.service("kubelet", command, ready)
        self._kubelet.start()

    @property
    def kubelet_folder(self) -> Path:
        """What the node itself sees as /var/lib/kubelet."""
        return self.machine.folder / "kubelet"

    @property
    def checkpoints(self) -> Path:
        """Where the kubelet has the runtime put archives of containers."""
        return self.kubelet_folder / "checkpoints"

    def kill(self) -> None:
        """Everything on the node ends at once."""
        self.machine.kill()
        for component in self.components:
            component.kill()

    def log_of(self, namespace: str, pod: str, container: str) -> Path:
        """The file on the node's own disk, for when nobody can ask its kubelet."""
        logs = self.machine.folder / "overlays" / "log" / "upper" / "pods"
        (found,) = logs.glob(f"{namespace}_{pod}_*/{container}/0.log")
        return found

    def _serving_pair(self) -> Pair:
        """Signed by the lab's authority, and where a kubelet keeps its own."""
        issued = self._around.authority.server(f"kubelet-{self.name}", self.address)
        folder = self.kubelet_folder / "pki"
        folder.mkdir(parents=True, exist_ok=True)
        for file, name in zip(issued, ("kubelet.crt", "kubelet.key"), strict=True):
            shutil.copy(file, folder / name)
        return Pair(KUBELET_FOLDER / "pki" / "kubelet.crt", KUBELET_FOLDER / "pki" / "kubelet.key")

    def _write_settings(self) -> None:
        folder, around = self.machine.folder, self._around
        (folder / "cni").mkdir(exist_ok=True)
        network = settings.pod_network(around.addresses, self._number, folder)
        (folder / "cni" / "pods.conflist").write_text(json.dumps(network))
        serving = self._serving_pair()
        dns, ca_file = around.addresses.dns, around.authority.file
        told = settings.kubelet(self.address, dns, serving, ca_file, folder, around.pace)
        told = {key: value for key, value in (told | self._setup.kubelet).items() if value is not None}
        self._settings.write_text(yaml.safe_dump(told))
