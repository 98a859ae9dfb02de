"""What a node's servers are told, as the files that they read."""

from pathlib import Path
from typing import Any, NamedTuple

from tests.control_plane.certificates import Pair
from tests.nodes.network import BRIDGE, Addresses

PAUSE = "localhost/pause:lab"
KUBELET_PORT, HEALTH_PORT = 10250, 10248
SOCKET = "/run/containerd/containerd.sock"


class NodeSetup(NamedTuple):
    """In what one node of a lab differs from the others."""

    restore: bool = True  # containerd creates containers from checkpoint images
    criu: bool = True  # CRIU is in the runtime's PATH, if this machine has it
    kubelet: dict[str, Any] = {}  # settings in the place of the usual ones; None leaves one out


USUAL = NodeSetup()


class Pace(NamedTuple):
    """How fast the death of a node is noticed, and acted on, by Kubernetes alone."""

    status_s: int  # a kubelet's reports
    lease_s: int
    grace_s: int  # a node that is silent for so long is not ready
    toleration_s: int  # a pod on such a node is deleted after so long

    @property
    def controller_manager(self) -> list[str]:
        return [f"--node-monitor-grace-period={self.grace_s}s", f"--node-monitor-period={max(1, self.grace_s // 10)}s"]

    @property
    def apiserver(self) -> list[str]:
        return [f"--default-{state}-toleration-seconds={self.toleration_s}" for state in ("not-ready", "unreachable")]


AS_ALWAYS = Pace(status_s=10, lease_s=40, grace_s=50, toleration_s=300)
# As short as it can be on a machine that is busy with other tests, where a kubelet may be late.
QUICK = Pace(status_s=2, lease_s=8, grace_s=12, toleration_s=2)


def kubelet(address: str, dns: str, serving: Pair, ca_file: Path, folder: Path, pace: Pace) -> dict[str, Any]:
    return {
        **every_kubelet(dns, pace),
        "address": address,
        "port": KUBELET_PORT,
        "healthzBindAddress": address,
        "healthzPort": HEALTH_PORT,
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(ca_file)},
        },
        "authorization": {"mode": "Webhook"},
        "volumePluginDir": str(folder / "volume-plugins"),
    }


def every_kubelet(dns: str, pace: Pace) -> dict[str, Any]:
    """What does not differ from node to node."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,  # a lower one needs a right that root may be without
        "makeIPTablesUtilChains": False,
        "clusterDNS": [dns],
        "clusterDomain": "cluster.local",
        # The disk is the host's: how full it is says nothing about this node.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "nodeStatusUpdateFrequency": f"{pace.status_s}s",
        "nodeLeaseDurationSeconds": pace.lease_s,
    }


def containerd(store: Path, plugins: Path, network: Path, registries: Path, *, restore: bool) -> str:
    return f"""\
version = 3
root = "{store}"

[plugins."io.containerd.metadata.v1.bolt"]
no_sync = true

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"

[plugins."io.containerd.cri.v1.images".registry]
config_path = "{registries}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
enable_experimental_restore_via_create = {"true" if restore else "false"}

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{plugins}"]
conf_dir = "{network}"
"""


def pod_network(addresses: Addresses, number: int, folder: Path) -> dict[str, Any]:
    """Pods are on the same wire as the nodes: no routes, no translated addresses."""
    first, last = addresses.pods(number)
    pods = {"subnet": addresses.everyone, "rangeStart": first, "rangeEnd": last}
    plugin = {
        "type": "bridge",
        "bridge": BRIDGE,
        "ipam": {"type": "host-local", "dataDir": str(folder / "addresses"), "ranges": [[pods]]},
    }
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [plugin]}


def corefile(kubeconfig: Path) -> str:
    return f""".:53 {{
    errors
    kubernetes cluster.local {{
        kubeconfig {kubeconfig}
        ttl 1
    }}
}}
"""
