"""Operator and agent together, each a process with the rights of the manifests alone, on the real API server.

Only the kubelet is scripted: kwok's nodes have none.
"""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from holdfast.checkpoints.images.newest import images_of
from tests.checkpoints.images.conftest import registry_server
from tests.checkpoints.images.registries import PASSWORD, USER, RunningRegistry
from tests.control_plane import logins
from tests.control_plane.api import JSON
from tests.control_plane.component import Component
from tests.control_plane.nodes import Nodes
from tests.control_plane.ports import free_ports
from tests.control_plane.probe import answers
from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually
from tests.node.kubelets import ScriptedKubelet, self_signed
from tests.operator.conftest import StartOperator
from tests.operator.deployed import AGENTS, BACKUPS, OPERATOR, NodeAgentLogin, agent_on, deployed, operator_login
from tests.operator.process import OperatorProcess

__all__ = ["registry_server"]

MIB = 1 << 20
# Of the limit in the DaemonSet, 128 MiB, a fifth is left.
MOST_MEMORY = 100 * MIB


class AgentProcess(Component):
    """`holdfast node` with the agent's own account."""

    def __init__(self, plane: ControlPlane, login: NodeAgentLogin, folder: Path, kubelet: ScriptedKubelet) -> None:
        (self.metrics_port,) = free_ports(1)
        kubelet.token = login.token
        (folder / "token").write_text(login.operator_token)
        kubeconfig = logins.with_token(folder / "agent.kubeconfig", plane.url, plane.ca_file, login.token)
        host, _, port = kubelet.url.removeprefix("https://").partition(":")
        command = [
            *(sys.executable, "-m", "holdfast", "node"),
            f"--kubeconfig={kubeconfig}",
            f"--node-name={login.node}",
            f"--node-address={host}",
            f"--kubelet-port={port}",
            f"--kubelet-certificate={folder / 'pki' / 'kubelet.crt'}",
            f"--checkpoints-folder={kubelet.checkpoints}",
            f"--journal-folder={folder / 'journal'}",
            f"--token-file={folder / 'token'}",
            f"--metrics-port={self.metrics_port}",
            "--bind-address=127.0.0.1",
            "--no-preemption-notices",
        ]
        ready = partial(answers, self.metrics_port, "/readyz")
        super().__init__("holdfast node", command, log=folder / "agent.log", ready=ready)

    @property
    def peak_bytes(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))

    @property
    def exit_code(self) -> int | None:
        return self._process.poll() if self._process else None


@pytest.fixture(scope="module")
def agents_plane(plane: ControlPlane) -> Iterator[ControlPlane]:
    with deployed(plane, "operator", "node") as found:
        yield found


@pytest.fixture
async def node(agents_plane: ControlPlane) -> AsyncIterator[str]:
    nodes = Nodes(agents_plane.api)
    yield (await nodes.add(1, prefix="saved"))[0]
    await nodes.remove()


@pytest.fixture
async def agent(agents_plane: ControlPlane, node: str, tmp_path: Path) -> AsyncIterator[AgentProcess]:
    (tmp_path / "checkpoints").mkdir()
    kubelet = ScriptedKubelet(tmp_path / "checkpoints")
    async with kubelet.serving(self_signed(tmp_path / "pki")):
        agent = AgentProcess(agents_plane, await agent_on(agents_plane, node), tmp_path, kubelet)
        agent.start()
        try:
            yield agent
        finally:
            agent.stop()


@pytest.fixture
def operator(agents_plane: ControlPlane, namespace: str, start_operator: StartOperator) -> OperatorProcess:
    return start_operator(
        agents_plane,
        f"--namespace={namespace}",
        f"--lease-namespace={OPERATOR}",
        "--reports-address=127.0.0.1",
        "--reports-port=0",
        f"--node-service-account=system:serviceaccount:{AGENTS}:{AGENTS}",
        kubeconfig=operator_login(agents_plane),
    )


@asynccontextmanager
async def secret(plane: ControlPlane, namespace: str, registry: RunningRegistry, folder: Path) -> AsyncIterator[None]:
    """The registry's login, which an administrator lets the operator read."""
    ca = folder / "registry-ca.crt"
    ca.write_text(registry.credential().authority)
    made = ("create", "secret", "generic", "login", f"--namespace={namespace}", f"--from-literal=username={USER}")
    plane.kubectl(*made, f"--from-literal=password={PASSWORD}", f"--from-file=ca.crt={ca}")
    bind = ("create", "rolebinding", "holdfast-secrets", f"--namespace={namespace}", "--clusterrole=holdfast-secrets")
    plane.kubectl(*bind, f"--serviceaccount={OPERATOR}:holdfast-operator")
    yield


async def running_pod(plane: ControlPlane, namespace: str, node: str) -> None:
    container = {"name": "main", "image": "registry.invalid/numbers:1"}
    spec = {"nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}]}
    path = f"/api/v1/namespaces/{namespace}/pods"
    await plane.api.request(
        "POST", path, {"metadata": {"name": "numbers"}, "spec": {**spec, "automountServiceAccountToken": False}}
    )

    async def look() -> JSON:
        return await plane.api.request("GET", f"{path}/numbers")

    await eventually(look, lambda pod: pod["status"]["phase"] == "Running", what="the pod runs")


async def ended(plane: ControlPlane, namespace: str) -> JSON:
    async def look() -> JSON:
        return await plane.api.request("GET", f"{BACKUPS}/namespaces/{namespace}/checkpointbackups/save")

    done = ("Completed", "CompletedWithError", "Failed")
    return await eventually(look, lambda it: it.get("status", {}).get("phase") in done, what="the backup ends")


async def test_a_backup_is_carried_out_with_the_rights_of_the_manifests_and_nine_writes(
    agents_plane: ControlPlane,
    node: str,
    agent: AgentProcess,
    operator: OperatorProcess,
    registry_server: RunningRegistry,
    namespace: str,
    tmp_path: Path,
) -> None:
    begin = agents_plane.audit_position()
    await running_pod(agents_plane, namespace, node)
    async with secret(agents_plane, namespace, registry_server, tmp_path):
        registry = {"url": registry_server.address.host, "repository": namespace, "secretRef": {"name": "login"}}
        spec = {"schedule": "immediately", "podRef": {"name": "numbers"}, "registry": registry}
        body = {"apiVersion": "migration.dcnlab.com/v1", "kind": "CheckpointBackup", "metadata": {"name": "save"}}
        made = await agents_plane.api.request(
            "POST", f"{BACKUPS}/namespaces/{namespace}/checkpointbackups", {**body, "spec": spec}
        )
        status = (await ended(agents_plane, namespace))["status"]
    assert status["phase"] == "Completed", status
    async with registry_server.client() as client:
        (image,) = await images_of(client, namespace, made["metadata"]["uid"])
    assert (image.digest, image.run) == (status["builtImages"][0]["digest"], 1)
    writes = [
        request
        for request in agents_plane.audit(begin)
        if request.is_write and request.target.resource == "checkpointbackups" and request.verb == "patch"
    ]
    assert len(writes) <= 9, writes
    assert list((tmp_path / "checkpoints").iterdir()) == list((tmp_path / "journal").iterdir()) == []
    assert agent.peak_bytes < MOST_MEMORY
    for text in (agent.log.read_text(), operator.log.read_text()):
        assert PASSWORD not in text
    agent.stop()
    assert agent.exit_code == 0
