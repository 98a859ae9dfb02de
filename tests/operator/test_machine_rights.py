"""What the operator may do for its machines on the real API server: Secrets and Nodes of its own, and no others."""

import base64
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from holdfast.api.provisionedinstance import INSTANCE_LABEL, RESERVED_TAINT, SPOT_NODE_LABEL, machine_name
from holdfast.machines.bootstrap_tokens import GROUP, token_of, token_secret
from holdfast.machines.ssh_keys import ROOT_KEY_SECRET
from holdfast.spotinstancejob.names import pull_secret_name
from tests.control_plane.api import JSON, MERGE, Api, Refused
from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually
from tests.operator.deployed import MANIFESTS, OPERATOR, deployed, may

ACCOUNT = f"system:serviceaccount:{OPERATOR}:holdfast-operator"
TOKEN = token_of("u1", bytes(32))
MANAGED = {"app.kubernetes.io/managed-by": "holdfast"}
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
POLICIES = ("holdfast-machine-secrets", "holdfast-machine-nodes")
PULL = pull_secret_name("bert")
DOCKER = "kubernetes.io/dockerconfigjson"


@pytest.fixture(scope="module")
def operator_plane(plane: ControlPlane) -> Iterator[ControlPlane]:
    with deployed(plane, "operator") as found:
        yield found


@pytest.fixture(scope="module")
async def operator(operator_plane: ControlPlane) -> Api:
    """The operator's own rights. The server reads its policies now and then: they are in force when this returns."""
    token = operator_plane.kubectl("create", "token", "holdfast-operator", f"--namespace={OPERATOR}").strip()
    api = Api(operator_plane.url, operator_plane.ca_file, token)

    async def of_secrets() -> str:
        return await refusal(api.request("POST", secrets("kube-system"), secret("probe"), dryRun="All"))

    async def of_nodes() -> str:
        return await refusal(api.request("DELETE", "/api/v1/nodes/no-machine", dryRun="All"))

    await eventually(of_secrets, lambda said: "bootstrap tokens" in said, what="the policy of Secrets")
    probe = {"metadata": {"name": "no-machine"}}
    await operator_plane.api.request("POST", "/api/v1/nodes", probe)
    await eventually(of_nodes, lambda said: "is no machine of the operator" in said, what="the policy of Nodes")
    await operator_plane.api.request("DELETE", "/api/v1/nodes/no-machine")
    return api


@pytest.fixture
async def machine(operator_plane: ControlPlane) -> AsyncIterator[str]:
    """The Node of a machine that has just joined."""
    uid = str(uuid.uuid4())
    path = f"/api/v1/nodes/{machine_name(uid)}"
    node = {"metadata": {"name": machine_name(uid), "labels": {"zone": "a"}, "annotations": {"a": "b"}}}
    await operator_plane.api.request("POST", "/api/v1/nodes", node)
    yield path
    await gone(operator_plane.api, path)


async def gone(api: Api, path: str) -> None:
    try:
        await api.request("DELETE", path)
    except Refused as refused:
        if refused.code != 404:
            raise


async def refusal(request: Any) -> str:
    """What the server says to a request that it refuses with 403; "" if it takes it."""
    try:
        await request
    except Refused as refused:
        if refused.code != 403:
            raise
        return str(refused)
    return ""


async def patched(api: Api, path: str, patch: JSON) -> JSON:
    async with api.session() as session:
        return await session.request("PATCH", path, patch, content_type=MERGE)


def secrets(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/secrets"


def secret(name: str, kind: str = "Opaque", *, labels: JSON | None = None, **data: str) -> JSON:
    encoded = {key.replace("_", "-"): base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {"metadata": {"name": name, "labels": labels or {}}, "type": kind, "data": encoded}


def bootstrap_token(name: str = TOKEN.secret_key.name, **data: str | None) -> JSON:
    """As the operator makes it, but for what is given; None takes a value out."""
    made = token_secret(TOKEN, machine="holdfast-u1", expires_at=datetime(2030, 1, 1, tzinfo=UTC))
    given = {key.replace("_", "-"): value for key, value in data.items()}
    changed = {key: base64.b64encode(value.encode()).decode() for key, value in given.items() if value is not None}
    kept = {key: value for key, value in made["data"].items() if key not in given}
    return {**made, "metadata": {**made["metadata"], "name": name}, "data": {**kept, **changed}}


def unlabelled(body: JSON) -> JSON:
    return {**body, "metadata": {"name": body["metadata"]["name"]}}


def pull_secret(name: str = PULL, **labels: str) -> JSON:
    return secret(name, DOCKER, labels=labels or MANAGED, **{".dockerconfigjson": "{}"})


async def test_a_token_for_a_machine_is_made_and_deleted_and_not_read(
    operator_plane: ControlPlane, operator: Api
) -> None:
    path = f"{secrets('kube-system')}/{TOKEN.secret_key.name}"
    await operator.request("POST", secrets("kube-system"), bootstrap_token())
    assert 'cannot get resource "secrets"' in await refusal(operator.request("GET", path))
    assert 'cannot patch resource "secrets"' in await refusal(patched(operator, path, {"data": {}}))
    await operator.request("DELETE", path)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (secret(TOKEN.secret_key.name, labels=MANAGED), "no Secret but bootstrap tokens"),
        (unlabelled(bootstrap_token()), "no Secret but bootstrap tokens"),
        (bootstrap_token("root-ca"), "no Secret but bootstrap tokens"),
        (secret("account", "kubernetes.io/service-account-token", labels=MANAGED), "no Secret but bootstrap tokens"),
        (bootstrap_token(auth_extra_groups=f"{GROUP},system:bootstrappers:admins"), "is of the group"),
        (bootstrap_token(auth_extra_groups=None), "is of the group"),
        (bootstrap_token(expiration=None), "expires"),
    ],
    ids=["of no type", "unlabelled", "of another name", "of an account", "of two groups", "of no group", "for ever"],
)
async def test_in_kube_system_it_makes_nothing_but_tokens_for_machines(
    operator: Api, body: JSON, sentence: str
) -> None:
    if body["type"] == "kubernetes.io/service-account-token":
        body["metadata"]["annotations"] = {"kubernetes.io/service-account.name": "default"}
    assert sentence in await refusal(operator.request("POST", secrets("kube-system"), body))


@pytest.mark.parametrize(
    "body",
    [secret("of-somebody-else"), unlabelled(bootstrap_token())],
    ids=["another Secret", "an administrator's token"],
)
async def test_what_others_keep_in_kube_system_it_can_not_delete(
    operator_plane: ControlPlane, operator: Api, body: JSON
) -> None:
    path = f"{secrets('kube-system')}/{body['metadata']['name']}"
    await operator_plane.api.request("POST", secrets("kube-system"), body)
    try:
        assert "no Secret but bootstrap tokens" in await refusal(operator.request("DELETE", path))
    finally:
        await operator_plane.api.request("DELETE", path)


async def test_in_its_own_namespace_it_makes_and_reads_its_root_key_alone(
    operator_plane: ControlPlane, operator: Api
) -> None:
    path = f"{secrets(OPERATOR)}/{ROOT_KEY_SECRET}"
    await operator.request("POST", secrets(OPERATOR), secret(ROOT_KEY_SECRET, key="x"))
    assert (await operator.request("GET", path))["data"]["key"]
    assert "cannot delete" in await refusal(operator.request("DELETE", path))
    await operator_plane.api.request("DELETE", path)
    for other in (secret("another"), secret(ROOT_KEY_SECRET, "kubernetes.io/service-account-token")):
        other["metadata"]["annotations"] = {"kubernetes.io/service-account.name": "holdfast-operator"}
        assert f"no Secret but {ROOT_KEY_SECRET}" in await refusal(operator.request("POST", secrets(OPERATOR), other))
    assert "cannot get" in await refusal(operator.request("GET", f"{secrets(OPERATOR)}/another"))


def test_pull_secrets_are_for_administrators_to_allow(operator_plane: ControlPlane, namespace: str) -> None:
    for verb in VERBS:
        assert not may(operator_plane, ACCOUNT, verb, "secrets", "-n", namespace)
    _bind(operator_plane, namespace)
    allowed = {verb for verb in VERBS if may(operator_plane, ACCOUNT, verb, "secrets", "-n", namespace)}
    assert allowed == {"create", "patch", "delete"}


async def test_where_it_may_write_pull_secrets_it_writes_its_own_alone(
    operator_plane: ControlPlane, operator: Api, namespace: str
) -> None:
    _bind(operator_plane, namespace)
    path = secrets(namespace)

    async def made() -> str:
        return await refusal(operator.request("POST", path, pull_secret()))

    # The authorizer reads bindings now and then.
    await eventually(made, lambda said: not said, what="the right to write pull Secrets")
    await patched(operator, f"{path}/{PULL}", {"data": {".dockerconfigjson": base64.b64encode(b"{}").decode()}})
    assert "pull Secrets" in await refusal(
        patched(operator, f"{path}/{PULL}", {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}})
    )
    await operator.request("DELETE", f"{path}/{PULL}")
    for body in (secret(PULL, labels=MANAGED), pull_secret("bert"), pull_secret(team="vision")):
        assert "no Secret but pull Secrets" in await refusal(operator.request("POST", path, body))
    await operator_plane.api.request("POST", path, pull_secret(team="vision"))
    assert "no Secret but pull Secrets" in await refusal(operator.request("DELETE", f"{path}/{PULL}"))
    taken = {"metadata": {"labels": MANAGED}}
    assert "no Secret but pull Secrets" in await refusal(patched(operator, f"{path}/{PULL}", taken))


def _bind(plane: ControlPlane, namespace: str) -> None:
    account = f"--serviceaccount={OPERATOR}:holdfast-operator"
    role = "--clusterrole=holdfast-pull-secrets"
    plane.kubectl("create", "rolebinding", "holdfast-pull-secrets", f"--namespace={namespace}", role, account)


async def test_of_a_machines_node_it_writes_labels_and_the_reservation_and_deletes_it(
    operator: Api, machine: str
) -> None:
    labels = {SPOT_NODE_LABEL: "true", INSTANCE_LABEL: "u1"}
    found = await patched(operator, machine, {"metadata": {"labels": labels}})
    assert found["metadata"]["labels"] == {**labels, "zone": "a"}
    others = found["spec"].get("taints", [])
    reserved = {"key": RESERVED_TAINT, "value": "u2", "effect": "NoSchedule"}
    await patched(operator, machine, {"spec": {"taints": [*others, reserved]}})
    await patched(operator, machine, {"spec": {"taints": others}})
    await patched(operator, machine, {"metadata": {"labels": dict.fromkeys(labels)}})
    await operator.request("DELETE", machine)


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"labels": {"zone": None}}},
        {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
        {"metadata": {"annotations": {"a": None}}},
        {"metadata": {"finalizers": ["example.com/f"]}},
        {"spec": {"unschedulable": True}},
        {"spec": {"providerID": "gce://p/z/n"}},
        {"spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]}},
    ],
    ids=str,
)
async def test_nothing_else_of_a_machines_node_is_its_to_write(operator: Api, machine: str, change: JSON) -> None:
    assert "the operator writes only labels" in await refusal(patched(operator, machine, change))


async def test_a_node_that_is_no_machine_of_its_own_it_neither_changes_nor_deletes(
    operator_plane: ControlPlane, operator: Api
) -> None:
    for name in ("holdfast-1", "gpu-1"):
        path = f"/api/v1/nodes/{name}"
        await operator_plane.api.request(
            "POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": {SPOT_NODE_LABEL: "true"}}}
        )
        try:
            sentence = f"Node {name} is no machine of the operator"
            assert sentence in await refusal(operator.request("DELETE", path))
            change = {"metadata": {"labels": {INSTANCE_LABEL: "u1"}}}
            assert sentence in await refusal(patched(operator, path, change))
        finally:
            await gone(operator_plane.api, path)


async def test_of_namespaces_it_reads_the_one_whose_uid_names_the_cluster(operator: Api) -> None:
    assert (await operator.request("GET", "/api/v1/namespaces/kube-system"))["metadata"]["uid"]
    assert "cannot get" in await refusal(operator.request("GET", "/api/v1/namespaces/default"))


def test_the_server_finds_no_fault_in_the_policies(operator_plane: ControlPlane) -> None:
    for name in POLICIES:
        policy = yaml.safe_load(operator_plane.kubectl("get", "validatingadmissionpolicy", name, "-o", "yaml"))
        assert not policy.get("status", {}).get("typeChecking", {}).get("expressionWarnings"), name


def test_the_oldest_kubernetes_takes_the_policies(old_control_plane: ControlPlane) -> None:
    policies = [
        each
        for each in yaml.safe_load_all((MANIFESTS / "operator" / "spot.yaml").read_text())
        if each["apiVersion"].startswith("admissionregistration")
    ]
    told = old_control_plane.kubectl("create", "--dry-run=server", "-f", "-", input=yaml.safe_dump_all(policies))
    assert told.count("created (server dry run)") == 4


def test_without_its_file_the_operator_has_no_right_that_machines_need() -> None:
    """An engineer who wants no machines takes one line out of the kustomization."""
    kustomization = yaml.safe_load((MANIFESTS / "operator" / "kustomization.yaml").read_text())
    assert "spot.yaml" in kustomization["resources"]
    roles = [
        each
        for each in yaml.safe_load_all((MANIFESTS / "operator" / "rbac.yaml").read_text())
        if each["kind"] in ("Role", "ClusterRole") and each["metadata"]["name"] != "holdfast-secrets"
    ]
    assert len(roles) == 3
    for rule in (rule for role in roles for rule in role["rules"]):
        assert "secrets" not in rule["resources"]
        assert "namespaces" not in rule["resources"]
        assert "nodes" not in rule["resources"] or set(rule["verbs"]) == {"list", "watch"}
