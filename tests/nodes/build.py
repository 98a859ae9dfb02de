"""What nodes run, built once into the user's cache: kubelet, kubeadm, containerd, and a DNS server for the cluster."""

from pathlib import Path

from tests.control_plane.build import HERE as CONTROL_PLANE
from tests.control_plane.build import KUBERNETES, Binary, binary_folder, main

HERE = Path(__file__).parent
CONTAINERD = "github.com/containerd/containerd/v2/cmd"
WHAT = "node"

BINARIES = (
    Binary("kubelet", f"{KUBERNETES}/cmd/kubelet", CONTROL_PLANE),  # of the control plane's own version
    Binary("kubeadm", f"{KUBERNETES}/cmd/kubeadm", CONTROL_PLANE),
    Binary("containerd", f"{CONTAINERD}/containerd", HERE),
    Binary("containerd-shim-runc-v2", f"{CONTAINERD}/containerd-shim-runc-v2", HERE),
    Binary("ctr", f"{CONTAINERD}/ctr", HERE),
    Binary("coredns", "coredns", HERE / "coredns"),
)


def node_folder() -> Path:
    """Where these programs are, or will be when they are built."""
    return binary_folder(BINARIES, what=WHAT)


def build_all() -> int:
    """0 when all are there, and a message to the user otherwise."""
    return main(BINARIES, what=WHAT)
