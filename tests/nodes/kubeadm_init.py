"""What `kubeadm init` leaves in a cluster, so that machines may join a lab by kubeadm."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.control_plane.certificates import Authority
from tests.control_plane.server import ControlPlane
from tests.nodes import settings
from tests.nodes.network import Addresses
from tests.nodes.settings import Pace

PHASES = (("upload-config", "kubeadm"), ("upload-config", "kubelet"), ("bootstrap-token", "--skip-token-print"))
CONTROLLERS = (
    "bootstrap-signer-controller",
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-signing-controller",
    "token-cleaner-controller",
)
APISERVER_FLAG = "--enable-bootstrap-token-auth"


def controller_manager_flags(authority: Authority) -> list[str]:
    """It signs certificates of kubelets that join."""
    return [
        f"--controllers={','.join(CONTROLLERS)}",
        f"--cluster-signing-cert-file={authority.file}",
        f"--cluster-signing-key-file={authority.key_file}",
    ]


def allow_joins(plane: ControlPlane, kubeadm: Path, folder: Path, addresses: Addresses, pace: Pace) -> None:
    """The phases of `kubeadm init` that are left where kubeadm has not made the control plane; no token remains."""
    config = folder / "init.yaml"
    config.write_text(
        yaml.safe_dump_all(_documents(plane, run_kubeadm(kubeadm, "version", "--output=short"), addresses, pace))
    )
    for phase, more in PHASES:
        run_kubeadm(kubeadm, "init", "phase", phase, more, f"--config={config}", f"--kubeconfig={plane.kubeconfig}")
    tokens = "--field-selector=type=bootstrap.kubernetes.io/token"
    plane.kubectl("delete", "secrets", "--namespace=kube-system", tokens)


def _documents(plane: ControlPlane, version: str, addresses: Addresses, pace: Pace) -> list[dict[str, Any]]:
    api = {"apiVersion": "kubeadm.k8s.io/v1beta4"}
    endpoint = {"advertiseAddress": plane.address, "bindPort": plane.ports.apiserver}
    return [
        {
            **api,
            "kind": "InitConfiguration",
            "localAPIEndpoint": endpoint,
            "nodeRegistration": {"name": "n1", "criSocket": f"unix://{settings.SOCKET}"},
        },
        {
            **api,
            "kind": "ClusterConfiguration",
            "kubernetesVersion": version,
            "controlPlaneEndpoint": f"{plane.address}:{plane.ports.apiserver}",
            "networking": {"podSubnet": addresses.everyone, "dnsDomain": "cluster.local"},
        },
        settings.every_kubelet(addresses.dns, pace),
    ]


def run_kubeadm(kubeadm: Path, *command: str) -> str:
    done = subprocess.run([str(kubeadm), *command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"`kubeadm {' '.join(command)}` failed: {done.stdout}{done.stderr}"
    return done.stdout.strip()
