"""What an agent may do on the real API server: what it needs, for its own node, and no Secret anywhere."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import yaml

from tests.control_plane.api import JSON, MERGE, Api, Refused
from tests.control_plane.nodes import Nodes
from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually
from tests.operator.deployed import (
    AGENTS,
    BACKUPS,
    MANIFESTS,
    OPERATOR,
    NodeAgentLogin,
    agent_on,
    backup_on,
    deployed,
    may,
    path_of,
    write_status,
)

ACCOUNT = f"system:serviceaccount:{AGENTS}:{AGENTS}"
PREEMPTED = "holdfast.dev/preempted"
TAINT = {"key": PREEMPTED, "value": "20260101T000030Z", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def agents_plane(plane: ControlPlane) -> Iterator[ControlPlane]:
    with deployed(plane, "operator", "node") as found:
        yield found


@pytest.fixture(scope="module")
async def agents(agents_plane: ControlPlane) -> AsyncIterator[tuple[NodeAgentLogin, NodeAgentLogin]]:
    """The agents of two nodes. The server reads its policies now and then: they are in force when this returns."""
    nodes = Nodes(agents_plane.api)
    first, second = [await agent_on(agents_plane, name) for name in await nodes.add(2, prefix="saved")]

    async def refused() -> str:
        return await refusal(patched(first.api, f"/api/v1/nodes/{second.node}", {"spec": {"taints": [TAINT]}}))

    await eventually(refused, lambda said: "may not write Node" in said, what="the policy of Nodes")
    async with agents_plane.namespace() as namespace:
        foreign = await backup_on(agents_plane, namespace, second.node)

        async def refused_status() -> str:
            return await refusal(write_status(first.api, foreign, message="x"))

        await eventually(refused_status, lambda said: "may not write this" in said, what="the policy of backups")
    yield first, second
    await nodes.remove()


@pytest.fixture
def agent(agents: tuple[NodeAgentLogin, NodeAgentLogin]) -> NodeAgentLogin:
    return agents[0]


@pytest.fixture
def other_node(agents: tuple[NodeAgentLogin, NodeAgentLogin]) -> str:
    return agents[1].node


async def patched(api: Api, path: str, patch: JSON) -> JSON:
    async with api.session() as session:
        return await session.request("PATCH", path, patch, content_type=MERGE)


async def refusal(request: Any) -> str:
    """What the server says to a request that it refuses with 403; "" if it takes it."""
    try:
        await request
    except Refused as refused:
        if refused.code != 403:
            raise
        return str(refused)
    return ""


async def replaced_conditions(api: Api, node: str, condition: JSON) -> JSON:
    """A patch of a Node's status with one condition set."""
    found = await api.request("GET", f"/api/v1/nodes/{node}")
    others = [each for each in found["status"]["conditions"] if each["type"] != condition["type"]]
    version = found["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "status": {"conditions": [*others, condition]}}


async def test_it_may_do_what_it_needs_and_every_right_is_needed(
    agents_plane: ControlPlane, agent: NodeAgentLogin, namespace: str
) -> None:
    since, api = agents_plane.audit_position(), agent.api
    backup = await backup_on(agents_plane, namespace, agent.node)
    endpoint = {"metadata": {"name": "holdfast-node-endpoint"}, "data": {"reports.json": "{}"}}
    await agents_plane.api.request("POST", f"/api/v1/namespaces/{OPERATOR}/configmaps", endpoint)
    involved = {"kind": "CheckpointBackup", "name": backup["metadata"]["name"], "namespace": namespace}
    event = {"metadata": {"generateName": "e-"}, "involvedObject": involved, "reason": "x", "type": "Normal"}
    node = f"/api/v1/nodes/{agent.node}"

    listed = await api.request("GET", f"{BACKUPS}/checkpointbackups", labelSelector=f"holdfast.dev/node={agent.node}")
    assert [each["metadata"]["uid"] for each in listed["items"]] == [backup["metadata"]["uid"]]
    async with api.session() as session:
        watch = session.watch(f"{BACKUPS}/checkpointbackups", backup["metadata"]["resourceVersion"])
        await api.request("GET", path_of(backup))
        await write_status(api, backup, phase="Checkpointing", message="being saved")
        assert await anext(watch)
        await watch.aclose()  # type: ignore[attr-defined]
    await api.request("GET", f"/api/v1/namespaces/{AGENTS}/pods/{(await _own_pods(api, agent.node))[0]}")
    await patched(api, node, {"spec": {"taints": [TAINT]}})
    condition = {"type": PREEMPTED, "status": "True", "reason": "PreemptionNotice", "message": "in 30 s"}
    await patched(api, f"{node}/status", await replaced_conditions(api, agent.node, condition))
    made = await api.request("POST", f"/api/v1/namespaces/{namespace}/events", event)
    await patched(api, f"/api/v1/namespaces/{namespace}/events/{made['metadata']['name']}", {"count": 2})
    await api.request("GET", f"/api/v1/namespaces/{OPERATOR}/configmaps/holdfast-node-endpoint")
    await patched(api, node, {"spec": {"taints": None}})

    async def used() -> set[tuple[str, str]]:
        requests = agents_plane.audit(since, user=ACCOUNT)
        targets = [(each.verb, each.target) for each in requests if each.answer.code < 400]
        return {(verb, "/".join(filter(None, (on.resource, on.subresource)))) for verb, on in targets}

    # The kubelet asks for this one.
    assert _kubelet_allows(agents_plane, agent.node)
    wanted = {right for rule in _rules() for right in _rights(rule)} - {("create", "nodes/checkpoint")}
    assert await eventually(used, wanted.issubset, what=f"requests for {wanted}") == wanted


async def _own_pods(api: Api, node: str) -> list[str]:
    pods = await api.request("GET", "/api/v1/pods", fieldSelector=f"spec.nodeName={node}")
    return [each["metadata"]["name"] for each in pods["items"] if each["metadata"]["namespace"] == AGENTS]


def _rules() -> list[JSON]:
    documents = yaml.safe_load_all((MANIFESTS / "node" / "rbac.yaml").read_text())
    return [rule for each in documents if each["kind"] in ("Role", "ClusterRole") for rule in each["rules"]]


def _rights(rule: JSON) -> list[tuple[str, str]]:
    return [(verb, resource) for verb in rule["verbs"] for resource in rule["resources"]]


def _kubelet_allows(plane: ControlPlane, node: str) -> bool:
    """The review that a kubelet asks for when somebody calls its endpoint for checkpoints."""
    asked = {"verb": "create", "resource": "nodes", "subresource": "checkpoint", "name": node, "version": "v1"}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": ACCOUNT, "resourceAttributes": asked},
    }
    answer = yaml.safe_load(plane.kubectl("create", "-f", "-", "-o", "yaml", input=yaml.safe_dump(body)))
    return bool(answer["status"]["allowed"])


@pytest.mark.parametrize("place", ["", "/namespaces/default", f"/namespaces/{AGENTS}", f"/namespaces/{OPERATOR}"])
async def test_it_reads_no_secret_anywhere(agent: NodeAgentLogin, place: str) -> None:
    assert "secrets is forbidden" in await refusal(agent.api.request("GET", f"/api/v1{place}/secrets"))
    if place:
        assert 'secrets "login" is forbidden' in await refusal(
            agent.api.request("GET", f"/api/v1{place}/secrets/login")
        )


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("get", "nodes/proxy"),
        ("create", "nodes/proxy"),
        ("delete", "pods"),
        ("create", "pods"),
        ("create", "pods/exec"),
        ("create", "serviceaccounts/token"),
        ("create", "checkpointbackups.migration.dcnlab.com"),
        ("patch", "checkpointbackups.migration.dcnlab.com"),
        ("delete", "checkpointbackups.migration.dcnlab.com"),
        ("list", "configmaps"),
        ("delete", "nodes"),
    ],
)
def test_what_it_does_not_need_it_may_not(agents_plane: ControlPlane, verb: str, resource: str) -> None:
    name, _, sub = resource.partition("/")
    assert not may(agents_plane, ACCOUNT, verb, name, *([f"--subresource={sub}"] if sub else ()), "-A")


async def test_another_nodes_backup_is_refused(
    agents_plane: ControlPlane, agent: NodeAgentLogin, other_node: str, namespace: str
) -> None:
    foreign = await backup_on(agents_plane, namespace, other_node)
    said = await refusal(write_status(agent.api, foreign, phase="Failed"))
    assert (
        f"the agent of node {agent.node} may not write this CheckpointBackup: its run is for node {other_node}" in said
    )


async def test_a_backup_without_a_run_is_refused(
    agents_plane: ControlPlane, agent: NodeAgentLogin, namespace: str
) -> None:
    backup = await backup_on(agents_plane, namespace, agent.node)
    await write_status(agents_plane.api, backup, nodeName=None, run=0)
    assert "its run is for node (none)" in await refusal(write_status(agent.api, backup, nodeName=agent.node, run=1))


@pytest.mark.parametrize(
    "change",
    [{"nodeName": "another"}, {"run": 4}, {"podUID": "u2"}, {"mode": "application"}, {"startTime": None}],
    ids=lambda change: next(iter(change)),
)
async def test_which_run_it_is_stays_with_the_operator(
    agents_plane: ControlPlane, agent: NodeAgentLogin, namespace: str, change: JSON
) -> None:
    backup = await backup_on(agents_plane, namespace, agent.node)
    assert "is for the operator to write" in await refusal(write_status(agent.api, backup, **change))


@pytest.mark.parametrize("phase", ["Completed", "CompletedPodDeleted", "CompletedWithError", "Failed"])
async def test_a_run_that_is_over_is_no_longer_its_to_write(
    agents_plane: ControlPlane, agent: NodeAgentLogin, namespace: str, phase: str
) -> None:
    backup = await backup_on(agents_plane, namespace, agent.node)
    await write_status(agents_plane.api, backup, phase=phase)
    assert "the run is over" in await refusal(write_status(agent.api, backup, message="it went well"))


async def test_runs_of_the_sidecar_are_not_its_to_write(
    agents_plane: ControlPlane, agent: NodeAgentLogin, namespace: str
) -> None:
    backup = await backup_on(agents_plane, namespace, agent.node)
    await write_status(agents_plane.api, backup, mode="application")
    assert "is for the operator to write" in await refusal(write_status(agent.api, backup, phase="Completed"))


async def test_spec_and_labels_are_not_its_to_write(
    agents_plane: ControlPlane, agent: NodeAgentLogin, namespace: str
) -> None:
    backup = await backup_on(agents_plane, namespace, agent.node)
    for change in ({"metadata": {"labels": {"holdfast.dev/node": "another"}}}, {"spec": {"suspend": True}}):
        assert "forbidden" in await refusal(patched(agent.api, path_of(backup), change))
        # Through the status, the server takes such a change for none.
        await patched(agent.api, f"{path_of(backup)}/status", change)
    found = await agents_plane.api.request("GET", path_of(backup))
    assert (found["metadata"]["labels"], found["spec"]) == (backup["metadata"]["labels"], backup["spec"])


async def test_rights_beyond_its_role_do_not_lead_past_the_policies(
    agents_plane: ControlPlane, agent: NodeAgentLogin, namespace: str
) -> None:
    """An administrator who grants the account too much opens neither spec nor deletion."""
    agents_plane.grant(ACCOUNT, verbs="*", resources="checkpointbackups.migration.dcnlab.com", namespace=namespace)
    backup = await backup_on(agents_plane, namespace, agent.node)

    async def said() -> str:
        return await refusal(patched(agent.api, path_of(backup), {"spec": {"suspend": True}}))

    await eventually(said, lambda text: "write nothing of a CheckpointBackup but its status" in text, what="the policy")
    labels = {"metadata": {"labels": {"holdfast.dev/node": "another"}}}
    assert "but its status" in await refusal(patched(agent.api, path_of(backup), labels))
    assert "neither create nor delete" in await refusal(agent.api.request("DELETE", path_of(backup)))


@pytest.mark.parametrize(
    ("place", "change", "sentence"),
    [
        ("", {"metadata": {"labels": {"holdfast.dev/restore": "containerd"}}}, "metadata and spec"),
        ("", {"metadata": {"annotations": {"a": "b"}}}, "metadata and spec"),
        ("", {"spec": {"unschedulable": True}}, "metadata and spec"),
        ("", {"spec": {"providerID": "gce://x"}}, "metadata and spec"),
        ("", {"spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]}}, "Node's taints"),
        ("", {"spec": {"taints": [{**TAINT, "effect": "NoExecute"}]}}, "Node's taints"),
        ("/status", {"metadata": {"labels": {"a": "b"}}}, "metadata and spec"),
        ("/status", {"status": {"capacity": {"nvidia.com/gpu": "64"}}}, "Node's status"),
        ("/status", {"status": {"conditions": []}}, "Node's status"),
        ("/status", {"status": {"addresses": [{"type": "InternalIP", "address": "10.9.9.9"}]}}, "Node's status"),
        ("/status", {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}}, "Node's status"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else None,
)
async def test_of_its_own_node_only_the_notice_is_its_to_write(
    agent: NodeAgentLogin, place: str, change: JSON, sentence: str
) -> None:
    said = await refusal(patched(agent.api, f"/api/v1/nodes/{agent.node}{place}", change))
    assert f"of a {sentence}" in said or f"of a Node's {sentence}" in said


async def test_taints_of_others_stay_when_the_notice_comes_and_goes(
    agents_plane: ControlPlane, agent: NodeAgentLogin
) -> None:
    path, other = f"/api/v1/nodes/{agent.node}", {"key": "gpu", "value": "a", "effect": "NoSchedule"}
    await patched(agents_plane.api, path, {"spec": {"taints": [other]}})
    assert "of a Node's taints" in await refusal(patched(agent.api, path, {"spec": {"taints": [TAINT]}}))
    await patched(agent.api, path, {"spec": {"taints": [other, TAINT]}})
    await patched(agent.api, path, {"spec": {"taints": [other]}})
    await patched(agents_plane.api, path, {"spec": {"taints": None}})


async def test_the_agent_may_write_its_cpu_flags_and_annotations_of_others_stay(
    agents_plane: ControlPlane, agent: NodeAgentLogin
) -> None:
    path = f"/api/v1/nodes/{agent.node}"
    await patched(agents_plane.api, path, {"metadata": {"annotations": {"team": "a"}}})
    await patched(agent.api, path, {"metadata": {"annotations": {"holdfast.dev/cpu-flags": "avx2"}}})
    await patched(agent.api, path, {"metadata": {"annotations": {"holdfast.dev/cpu-flags": "avx2 sse2"}}})
    for value in ("b", None):
        assert "metadata and spec" in await refusal(
            patched(agent.api, path, {"metadata": {"annotations": {"team": value}}})
        )
    found = await agents_plane.api.request("GET", path)
    assert found["metadata"]["annotations"]["holdfast.dev/cpu-flags"] == "avx2 sse2"


async def test_another_nodes_taints_and_conditions_are_refused(agent: NodeAgentLogin, other_node: str) -> None:
    path = f"/api/v1/nodes/{other_node}"
    sentence = f"the agent of node {agent.node} may not write Node {other_node}"
    assert sentence in await refusal(patched(agent.api, path, {"spec": {"taints": [TAINT]}}))
    condition = {"type": PREEMPTED, "status": "True", "reason": "x", "message": "x"}
    change = await replaced_conditions(agent.api, other_node, condition)
    assert sentence in await refusal(patched(agent.api, f"{path}/status", change))


async def test_a_token_of_the_account_without_a_node_writes_nothing(
    agents_plane: ControlPlane, agent: NodeAgentLogin, namespace: str
) -> None:
    token = agents_plane.kubectl("create", "token", AGENTS, f"--namespace={AGENTS}").strip()
    unbound = Api(agents_plane.url, agents_plane.ca_file, token)
    backup = await backup_on(agents_plane, namespace, agent.node)
    assert "the token names no node" in await refusal(write_status(unbound, backup, phase="Failed"))
    said = await refusal(patched(unbound, f"/api/v1/nodes/{agent.node}", {"spec": {"taints": [TAINT]}}))
    assert f"the agent of node (none) may not write Node {agent.node}" in said


async def test_others_are_not_held_by_the_policies(agents_plane: ControlPlane, other_node: str) -> None:
    await patched(agents_plane.api, f"/api/v1/nodes/{other_node}", {"metadata": {"labels": {"a": "b"}}})


def test_the_server_finds_no_fault_in_the_policies(agents_plane: ControlPlane) -> None:
    for name in ("holdfast-node-backups", "holdfast-node-nodes"):
        policy = yaml.safe_load(agents_plane.kubectl("get", "validatingadmissionpolicy", name, "-o", "yaml"))
        assert not policy.get("status", {}).get("typeChecking", {}).get("expressionWarnings"), name


def test_the_oldest_kubernetes_takes_the_policies(old_control_plane: ControlPlane) -> None:
    policies = MANIFESTS / "node" / "policies.yaml"
    told = old_control_plane.kubectl("create", "--dry-run=server", f"--filename={policies}")
    assert told.count("created (server dry run)") == 4
