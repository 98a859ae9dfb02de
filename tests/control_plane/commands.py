"""The command lines of the five servers."""

from pathlib import Path
from typing import NamedTuple

from tests.control_plane.certificates import LOOPBACK, Pair

STAGES = Path(__file__).with_name("stages.yaml")

# What the kinds rely on, and what a namespace and its garbage need; the other controllers would only cost.
CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "persistentvolume-binder-controller",
    "persistentvolumeclaim-protection-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "taint-eviction-controller",
    "ttl-after-finished-controller",
)

# The default of 20 requests a second makes thousands of pods crawl.
UNHURRIED = ("--kube-api-qps=1000", "--kube-api-burst=2000")


class Ports(NamedTuple):
    etcd: int
    etcd_peer: int
    apiserver: int
    controller_manager: int
    scheduler: int
    kwok: int


class Files(NamedTuple):
    """What the servers share."""

    folder: Path
    address: str  # the API server's
    ca: Path
    serving: Pair
    service_account_key: Path
    tokens: Path
    audit_policy: Path
    audit_log: Path


def etcd(ports: Ports, files: Files) -> list[str]:
    client, peer = f"http://127.0.0.1:{ports.etcd}", f"http://127.0.0.1:{ports.etcd_peer}"
    return [
        f"--data-dir={files.folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",  # the page cache outlives a killed process, and nothing here outlives the machine
        "--log-level=warn",
    ]


def apiserver(ports: Ports, files: Files) -> list[str]:
    return [
        f"--etcd-servers=http://127.0.0.1:{ports.etcd}",
        f"--secure-port={ports.apiserver}",
        *_serving(files, files.address),
        f"--client-ca-file={files.ca}",
        f"--token-auth-file={files.tokens}",
        "--authorization-mode=RBAC",
        f"--service-account-issuer=https://{files.address}:{ports.apiserver}",
        f"--service-account-key-file={files.service_account_key}",
        f"--service-account-signing-key-file={files.service_account_key}",
        "--service-cluster-ip-range=10.0.0.0/16",
        "--endpoint-reconciler-type=none",  # a loopback address may not stand in an Endpoints object
        f"--audit-policy-file={files.audit_policy}",
        f"--audit-log-path={files.audit_log}",
        "--audit-log-maxsize=0",
        "--shutdown-watch-termination-grace-period=1s",  # or a stop waits for watches that never end by themselves
        # Logs of fake pods are asked of kwok, as if it were their kubelet.
        "--kubelet-preferred-address-types=InternalIP",
        "--profiling=false",
    ]


def controller_manager(ports: Ports, files: Files, kubeconfig: Path) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--secure-port={ports.controller_manager}",
        *_serving(files),
        f"--controllers={','.join(CONTROLLERS)}",
        "--concurrent-job-syncs=20",
        f"--root-ca-file={files.ca}",
        "--leader-elect=false",
        "--profiling=false",
        *UNHURRIED,
    ]


def scheduler(ports: Ports, files: Files, kubeconfig: Path) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--secure-port={ports.scheduler}",
        *_serving(files),
        "--leader-elect=false",
        "--profiling=false",
        *UNHURRIED,
    ]


def kwok(ports: Ports, files: Files, kubeconfig: Path) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--config={STAGES}",
        "--node-ip=127.0.0.1",
        f"--node-port={ports.kwok}",
        f"--server-address=127.0.0.1:{ports.kwok}",
        f"--tls-cert-file={files.serving.certificate}",
        f"--tls-private-key-file={files.serving.key}",
        "--cidr=10.64.0.0/10",
    ]


def _serving(files: Files, address: str = LOOPBACK) -> list[str]:
    return [
        f"--bind-address={address}",
        f"--tls-cert-file={files.serving.certificate}",
        f"--tls-private-key-file={files.serving.key}",
    ]
