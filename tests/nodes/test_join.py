"""A machine joins by the real kubeadm, over OpenSSH and with sudo, and becomes a node of a real cluster."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import yaml
from msgspec import structs

from holdfast.api.core.pod import ObjectReference
from holdfast.api.spotinstancevm import SSH, KubeadmJoinConfig
from holdfast.cluster.kubernetes.client import KubernetesCluster
from holdfast.machines.bootstrap_tokens import token_of
from holdfast.machines.joining import JoinFailed, JoinProgress, JoinRequest, JoinStep, JoinTarget
from holdfast.machines.ssh_joiner import JoinTiming, SshJoiner
from holdfast.machines.ssh_keys import RootKey, token_bytes
from holdfast.runtime.process import utc_now
from holdfast.runtime.secrets import SecretReader
from tests.control_plane.waiting import eventually
from tests.nodes.build import node_folder
from tests.nodes.computer import Computer
from tests.nodes.kubeadm_init import run_kubeadm
from tests.nodes.lab import Lab
from tests.nodes.manifests import container, pod
from tests.nodes.settings import QUICK
from tests.nodes.user import log_of, until_phase
from tests.operator.user import apply, kubectl

pytestmark = pytest.mark.timeout(900)

# Most of a join is spent in waiting for processes; this machine may be busy with other tests.
ROOT_KEY = bytes(range(32))
UNKNOWN = "abcdef.0123456789abcdef"
TIMING = JoinTiming(step_s=240, first_pause_s=0.2, longest_pause_s=1)


@pytest.fixture(scope="module")
def lab(joining: None) -> Iterator[Lab]:
    with Lab(pace=QUICK, computers=6).running() as lab:
        yield lab


@pytest.fixture
async def cluster(lab: Lab) -> AsyncIterator[KubernetesCluster]:
    async with lab.cluster() as cluster:
        yield cluster


class Joining:
    """A machine that is made for one ProvisionedInstance, and joins."""

    def __init__(self, lab: Lab, cluster: KubernetesCluster, namespace: str) -> None:
        self.lab = lab
        self.namespace = namespace
        uid = f"uid-{namespace}"
        self.target = JoinTarget(
            uid=uid, namespace=namespace, node_name=f"holdfast-{uid}", project="acme-ml", zone="europe-west4-a"
        )
        self.progress: list[JoinProgress] = []
        self.told_key = ""
        self.computer: Computer | None = None
        self.token = token_of(uid, token_bytes(ROOT_KEY, uid))
        self.joiner = SshJoiner(
            cluster,
            secrets=SecretReader(cluster, operator_account="holdfast-system:holdfast-operator"),
            root_key=RootKey(cluster, namespace, lambda count: ROOT_KEY[:count]),
            now=utc_now,
            timing=TIMING,
        )

    async def boot(self) -> Computer:
        metadata = await self.joiner.metadata(self.target)
        self.computer = computer = await asyncio.to_thread(self.lab.new_computer, metadata)
        self.told_key = computer.host_key
        return computer

    async def host_keys(self, zone: str, name: str) -> tuple[str, ...]:
        return (self.told_key,)

    async def join(self) -> None:
        assert self.computer is not None
        request = JoinRequest(target=self.target, addresses=(self.computer.address,))
        await self.joiner.join(request, self, self.progress.append)

    async def node(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            await kubectl(self.lab.plane, "get", "node", self.target.node_name, "--output=json")
        )
        return found

    async def ready(self) -> None:
        shown = r'--output=jsonpath={.status.conditions[?(@.type=="Ready")].status}'

        async def look() -> str:
            return await kubectl(self.lab.plane, "get", "node", self.target.node_name, shown)

        await eventually(look, lambda status: status == "True", what=f"{self.target.node_name} is Ready")

    async def tokens(self) -> list[str]:
        fields = "--field-selector=type=bootstrap.kubernetes.io/token"
        return (await kubectl(self.lab.plane, "get", "secrets", "-n", "kube-system", fields, "-o", "name")).split()


@pytest.fixture
async def joining_machine(lab: Lab, cluster: KubernetesCluster, namespace: str) -> AsyncIterator[Joining]:
    it = Joining(lab, cluster, namespace)
    yield it
    if it.computer is not None:
        await asyncio.to_thread(lab.kill_computer, it.computer)
    await kubectl(lab.plane, "delete", "node", it.target.node_name, "--ignore-not-found")


async def test_a_machine_joins_with_a_token_of_its_own_and_runs_pods(joining_machine: Joining) -> None:
    it = joining_machine
    computer = await it.boot()

    await it.join()

    await it.ready()
    node = await it.node()
    assert node["spec"]["providerID"] == f"gce://acme-ml/europe-west4-a/{it.target.node_name}"
    assert node["metadata"]["labels"]["holdfast.dev/spot"] == "true"
    assert node["metadata"]["labels"]["holdfast.dev/instance"] == it.target.uid
    assert await it.tokens() == []
    # What the kubelet uses, and not only what kubeadm has written.
    said = await kubectl(it.lab.plane, "get", "--raw", f"/api/v1/nodes/{it.target.node_name}/proxy/configz")
    settings = json.loads(said)["kubeletconfig"]
    assert (settings["shutdownGracePeriod"], settings["shutdownGracePeriodCriticalPods"]) == ("25s", "10s")
    manifest = pod("here", container("trainer", "echo trained"), nodeName=it.target.node_name)
    await apply(it.lab.plane, it.namespace, manifest)
    await until_phase(it.lab.plane, it.namespace, "here", "Succeeded")
    assert await log_of(it.lab.plane, it.namespace, "here", "trainer") == "trained\n"
    assert files_with(computer, it.token.secret) == []


def files_with(computer: Computer, secret: str) -> list[Path]:
    """Of all that the machine has of its own."""
    layers = [computer.node.machine.folder / "layers", computer.node.kubelet_folder]
    files = [file for folder in layers for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
    return [file for file in files if secret.encode() in file.read_bytes()]


async def test_a_machine_joins_with_the_users_key_account_and_token(
    joining_machine: Joining, cluster: KubernetesCluster
) -> None:
    it = joining_machine
    key = asyncssh.generate_private_key("ssh-ed25519")
    token = await create_token(it.lab)
    secret = {"login": {"ssh-privatekey": key.export_private_key().decode()}, "join": {"token": token}}
    for name, data in secret.items():
        manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}
        await kubectl(it.lab.plane, "apply", "-n", it.namespace, "-f", "-", input=json.dumps(manifest))
    it.target = structs.replace(
        it.target,
        ssh=SSH(user="root", key_secret_ref=ObjectReference(name="login")),
        kubeadm=KubeadmJoinConfig(token_secret_ref=ObjectReference(name="join")),
    )
    await it.boot()

    await it.join()

    await it.ready()
    assert await it.tokens() == [f"secret/bootstrap-token-{token.partition('.')[0]}"]
    await kubectl(it.lab.plane, "delete", "-n", "kube-system", *await it.tokens())


async def create_token(lab: Lab) -> str:
    """As an administrator makes one."""
    kubeadm, kubeconfig = node_folder() / "kubeadm", f"--kubeconfig={lab.plane.kubeconfig}"
    return await asyncio.to_thread(run_kubeadm, kubeadm, "token", "create", "--ttl=10m", kubeconfig)


async def test_an_openssh_server_with_another_host_key_is_not_logged_in_to(joining_machine: Joining) -> None:
    it = joining_machine
    it.joiner.timing = JoinTiming(step_s=5, first_pause_s=0.2, longest_pause_s=1)
    computer = await it.boot()
    it.told_key = " ".join(asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().split()[:2])

    with pytest.raises(JoinFailed, match="shows another host key than the machine has told the cloud") as failed:
        await it.join()

    assert failed.value.step == JoinStep.LOGIN
    assert computer.ssh_server is not None
    assert "Accepted" not in computer.ssh_server.log.read_text()


async def test_a_kubeadm_that_was_begun_by_an_operator_before_is_found_by_the_next(joining_machine: Joining) -> None:
    it = joining_machine
    computer = await it.boot()
    first = asyncio.create_task(it.join())
    await eventually(lambda: kubeadm_runs(computer), bool, what="kubeadm runs")
    first.cancel()
    await asyncio.wait([first])

    await it.join()

    await it.ready()
    assert await it.tokens() == []
    assert yaml.safe_load(computer.kubelet_settings)["shutdownGracePeriod"] == "25s"


async def kubeadm_runs(computer: Computer) -> bool:
    script = "cat /proc/[0-9]*/comm 2>/dev/null; true"
    return "kubeadm" in (await asyncio.to_thread(computer.node.machine.run, "/bin/sh", "-c", script)).split()


async def test_what_kubeadm_refuses_is_said_without_the_token(joining_machine: Joining) -> None:
    """Here it finds what another join has left half-way."""
    it = joining_machine
    computer = await it.boot()
    left = "mkdir -p /etc/kubernetes/pki && touch /etc/kubernetes/pki/ca.crt"
    await asyncio.to_thread(computer.node.machine.run, "/bin/sh", "-ec", left)

    with pytest.raises(JoinFailed, match=r"exit status 1.*/etc/kubernetes/pki/ca.crt already exists") as failed:
        await it.join()

    assert failed.value.step == JoinStep.KUBEADM
    assert await it.tokens() == []
    assert it.token.secret not in f"{failed.value} {it.progress}"


async def test_a_token_that_the_cluster_does_not_know_is_kubeadms_own_word(joining_machine: Joining) -> None:
    it = joining_machine
    it.joiner.timing = JoinTiming(step_s=20, first_pause_s=0.2, longest_pause_s=1)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "join"}, "stringData": {"token": UNKNOWN}}
    await kubectl(it.lab.plane, "apply", "-n", it.namespace, "-f", "-", input=json.dumps(secret))
    it.target = structs.replace(it.target, kubeadm=KubeadmJoinConfig(token_secret_ref=ObjectReference(name="join")))
    await it.boot()

    with pytest.raises(JoinFailed, match="could not find a JWS signature in the cluster-info ConfigMap") as failed:
        await it.join()

    assert failed.value.step == JoinStep.KUBEADM
    assert UNKNOWN.partition(".")[2] not in str(failed.value)
