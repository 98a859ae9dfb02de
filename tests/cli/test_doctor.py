"""`holdfast doctor` as users run it, on a real API server and on the embedded one."""

from datetime import UTC, datetime
from pathlib import Path

from holdfast.api.meta import Key
from holdfast.api.reports import Endpoint, encode_endpoint
from holdfast.cli.doctor.command import nodes_section
from holdfast.cli.doctor.control_plane import operator_findings
from holdfast.cli.doctor.findings import Level
from holdfast.cli.session import Session
from holdfast.cluster.kubernetes.client import KubernetesCluster
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, CONFIG_MAPS, LEASES, NODES, PODS
from holdfast.runtime.process import utc_now
from holdfast.times import format_micro_time
from tests.cli.conftest import EmbeddedCommandLab
from tests.cli.lab import CommandLab, holdfast

NODE = "doctors-node"
INSIDE = ("  ok       the operator runs inside `holdfast up`",)
ENDPOINT = "  ok       the reports endpoint of the operator is https://10.1.2.3:8082"
OF_NODE = (
    "holdfast's agent runs",
    "kubelet v1.36.3 has the checkpoint endpoint on by default",
    "containerd 2.2.9 can save containers, with CRIU",
    "CRIU works: containers were saved here",
    "pods may be restored here: containerd 2.2.9, label holdfast.dev/restore=true",
    "the free disk for checkpoints: you may not look",
)
INFO = {
    "kernelVersion": "6.1.0",
    "osImage": "Debian",
    "containerRuntimeVersion": "containerd://2.2.9",
    "kubeletVersion": "v1.36.3",
    "architecture": "amd64",
    "operatingSystem": "linux",
    "machineID": "m",
    "systemUUID": "s",
    "bootID": "b",
    "kubeProxyVersion": "",
}


async def _installed(lab: CommandLab) -> None:
    """An operator that leads, and a node with an agent on which a container was saved."""
    cluster, namespace = lab.cluster, lab.namespace
    spec = {"holderIdentity": "op-1", "leaseDurationSeconds": 600, "renewTime": format_micro_time(datetime.now(UTC))}
    await cluster.create(LEASES, {"metadata": {"name": "holdfast-operator"}, "spec": spec}, namespace=namespace)
    text = encode_endpoint(Endpoint(url="https://10.1.2.3:8082", authority="PEM"))
    endpoint = {"metadata": {"name": "holdfast-node-endpoint"}, "data": {"reports.json": text}}
    await cluster.create(CONFIG_MAPS, endpoint, namespace=namespace)
    await cluster.create(NODES, {"metadata": {"name": NODE, "labels": {"holdfast.dev/restore": "true"}}})
    ready = {"type": "Ready", "status": "True", "reason": "Told", "message": "told"}
    status = {"status": {"nodeInfo": INFO, "conditions": [ready]}}
    await cluster.patch_status(NODES, Key("", NODE), status)
    agent = {
        "metadata": {"name": "agent", "labels": {"app.kubernetes.io/name": "holdfast-node"}},
        "spec": {"nodeName": NODE, "containers": [{"name": "agent", "image": "holdfast:0.1.0"}]},
    }
    await cluster.create(PODS, agent, namespace=namespace)
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await cluster.patch_status(PODS, Key(namespace, "agent"), {"status": running})
    registry = {"url": "r.example", "repository": "checkpoints"}
    backup = {"schedule": "immediately", "podRef": {"name": "p"}, "registry": registry}
    await cluster.create(CHECKPOINT_BACKUPS, {"metadata": {"name": "nightly"}, "spec": backup}, namespace=namespace)
    done = {"phase": "Completed", "run": 1, "nodeName": NODE, "mode": "container"}
    await cluster.patch_status(CHECKPOINT_BACKUPS, Key(namespace, "nightly"), {"status": done})


async def test_a_cluster_is_described_line_by_line(lab: CommandLab) -> None:
    await _installed(lab)
    is_local = isinstance(lab, EmbeddedCommandLab)
    try:
        done = await holdfast("doctor", KUBECONFIG=str(lab.kubeconfig))
    finally:
        await lab.cluster.delete(NODES, Key("", NODE))
    for line in (
        "  ok       all 6 CustomResourceDefinitions are those of this holdfast (0.1.0)",
        *(INSIDE if is_local else (f"  ok       op-1 leads (Lease {lab.namespace}/holdfast-operator)", ENDPOINT)),
    ):
        assert line in done.lines, done.out
    of_node = [line for line in done.lines if NODE in line or "all" in line]
    for words in () if is_local else OF_NODE:
        assert any(words in line for line in of_node), done.out
    assert done.code == (1 if "problem  " in done.out else 0)
    assert done.err == ""


def _session(lab: CommandLab) -> Session:
    """As of a cluster that is no `holdfast up`."""
    assert isinstance(lab.cluster, KubernetesCluster)
    return Session(cluster=lab.cluster, namespace=lab.namespace, now=utc_now)


async def test_a_cluster_without_an_operator_and_without_nodes_has_problems(embedded: CommandLab) -> None:
    (operator,) = await operator_findings(_session(embedded))
    assert (operator.level, operator.text) == (Level.PROBLEM, "no operator has ever led: there is no Lease")
    (nodes,) = await nodes_section(_session(embedded))
    assert (nodes.level, nodes.text) == (Level.PROBLEM, "the cluster has no Linux nodes")


async def test_every_node_is_examined_on_both_engines(embedded: CommandLab) -> None:
    await _installed(embedded)
    found = [finding.text for finding in await nodes_section(_session(embedded))]
    assert [text for text in found if not text.startswith(f"{NODE}: its CPU flags")] == [
        f"{NODE}: {words}" for words in OF_NODE
    ]


async def test_on_one_machine_nothing_is_asked_of_a_runtime(embedded: CommandLab) -> None:
    done = await holdfast("doctor", KUBECONFIG=str(embedded.kubeconfig))
    assert done.code == 0, done
    assert any("pods are processes here" in line for line in done.lines)
    assert any("GiB are free in " in line for line in done.lines)
    assert done.lines[-1] == "no problems found"


async def test_an_operator_that_is_gone_is_a_problem(embedded: CommandLab) -> None:
    await _installed(embedded)
    old = {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}
    await embedded.cluster.patch(LEASES, Key(embedded.namespace, "holdfast-operator"), old)
    await embedded.cluster.delete(CONFIG_MAPS, Key(embedded.namespace, "holdfast-node-endpoint"))
    leader, endpoint = await operator_findings(_session(embedded))
    assert leader.text.startswith("nobody leads: op-1 renewed Lease trial/holdfast-operator last")
    assert endpoint.text.startswith("the leader has not published its reports endpoint")
    assert {leader.level, endpoint.level} == {Level.PROBLEM}


async def test_an_endpoint_that_can_not_be_read_is_a_problem(embedded: CommandLab) -> None:
    await _installed(embedded)
    key = Key(embedded.namespace, "holdfast-node-endpoint")
    await embedded.cluster.patch(CONFIG_MAPS, key, {"data": {"reports.json": "nonsense"}})
    _, endpoint = await operator_findings(_session(embedded))
    assert endpoint.level is Level.PROBLEM
    assert endpoint.advice == "delete it: the leader writes it again"


async def test_a_user_who_may_see_nothing_gets_the_missing_rights(control_plane_stranger: Path) -> None:
    done = await holdfast("doctor", KUBECONFIG=str(control_plane_stranger))
    assert done.code == 0, done
    hidden = [line for line in done.lines if line.startswith("  hidden")]
    assert [line.split()[1] for line in hidden] == ["CustomResourceDefinitions:", "Deployments", "who", "nodes:"]
    assert done.lines[-1] == "no problems found; what is hidden from you (4) was not examined"
    assert done.err == ""
