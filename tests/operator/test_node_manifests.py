"""The agents' DaemonSet: what it is given of a node, and that the API server takes it."""

import inspect
import os
from pathlib import Path
from typing import Any

import yaml

from holdfast.api.credentials import NODE_AUDIENCE
from holdfast.cli import node as node_command
from holdfast.cli.operator import DEFAULT_IMAGE
from holdfast.cluster.kubernetes.kubeconfig import SERVICE_ACCOUNT
from tests.control_plane.server import ControlPlane
from tests.operator.deployed import AGENTS, MANIFESTS

DAEMON_SET = yaml.safe_load((MANIFESTS / "node" / "daemonset.yaml").read_text())
POD: dict[str, Any] = DAEMON_SET["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
VOLUMES = {volume["name"]: volume for volume in POD["volumes"]}


def default(option: str) -> Path:
    return Path(inspect.signature(node_command.node).parameters[option].default)


def test_root_has_no_capabilities_and_a_root_file_system_that_it_cannot_write() -> None:
    assert CONTAINER["securityContext"] == {
        "runAsUser": 0,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert CONTAINER["resources"]["limits"] == {"memory": "128Mi"}
    assert (POD["hostNetwork"], POD["priorityClassName"]) == (True, "system-node-critical")
    assert not {"hostPID", "hostIPC"} & POD.keys()


def test_of_the_node_it_sees_two_folders_and_one_certificate() -> None:
    """The kubelet's private keys lie beside its certificate: with them the agent would be the node itself."""
    mounted = {mount["mountPath"]: mount for mount in CONTAINER["volumeMounts"]}
    host_paths = {name: volume["hostPath"] for name, volume in VOLUMES.items() if "hostPath" in volume}
    assert {path["path"] for path in host_paths.values()} == {
        str(default("checkpoints_folder")),
        str(default("journal_folder")),
        str(default("kubelet_certificate")),
    }
    for name, path in host_paths.items():
        assert mounted[path["path"]]["name"] == name, "the same path inside and outside"
    assert mounted[str(default("kubelet_certificate"))]["readOnly"]
    assert host_paths["kubelet-certificate"]["type"] == "File"


def test_its_token_for_the_operator_is_for_nobody_else() -> None:
    (source,) = VOLUMES["operator-token"]["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == NODE_AUDIENCE
    (mount,) = [each for each in CONTAINER["volumeMounts"] if each["name"] == "operator-token"]
    assert f"{mount['mountPath']}/{source['serviceAccountToken']['path']}" == str(default("token_file"))


def test_its_token_for_the_api_server_ends_within_the_hour() -> None:
    """The API server extends the token that is mounted by itself to a year."""
    assert POD["automountServiceAccountToken"] is False
    token, *_ = VOLUMES["api-token"]["projected"]["sources"]
    assert token == {"serviceAccountToken": {"expirationSeconds": 3600, "path": "token"}}
    (mount,) = [each for each in CONTAINER["volumeMounts"] if each["name"] == "api-token"]
    assert Path(mount["mountPath"]) == SERVICE_ACCOUNT


def test_the_agent_gets_its_node_and_the_operators_endpoint() -> None:
    environment = {each["name"]: each.get("value") or each["valueFrom"] for each in CONTAINER["env"]}
    assert environment["NODE_NAME"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert environment["NODE_IP"] == {"fieldRef": {"fieldPath": "status.hostIP"}}
    assert environment["OPERATOR_NAMESPACE"] == "holdfast-system"
    (port,) = [each["containerPort"] for each in CONTAINER["ports"]]
    assert port == inspect.signature(node_command.node).parameters["metrics_port"].default
    assert CONTAINER["image"] == DEFAULT_IMAGE


def test_the_operator_gets_the_agents_account() -> None:
    deployment = yaml.safe_load((MANIFESTS / "operator" / "deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    account = f"system:serviceaccount:{DAEMON_SET['metadata']['namespace']}:{POD['serviceAccountName']}"
    assert f"--node-service-account={account}" in container["args"]
    assert account in (MANIFESTS / "node" / "policies.yaml").read_text()


def test_the_operator_knows_agents_by_their_label() -> None:
    assert DAEMON_SET["spec"]["template"]["metadata"]["labels"] == {"app.kubernetes.io/name": "holdfast-node"}


def test_a_component_leaves_the_certificate_out_where_the_cluster_has_signed_it(
    plane: ControlPlane, tmp_path: Path
) -> None:
    folders = [os.path.relpath(MANIFESTS / name, tmp_path.resolve()) for name in ("node", "components")]
    kustomization = {"resources": [folders[0]], "components": [f"{folders[1]}/signed-kubelet-certificates"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    documents = yaml.safe_load_all(plane.kubectl("kustomize", str(tmp_path)))
    (pod,) = [each["spec"]["template"]["spec"] for each in documents if each["kind"] == "DaemonSet"]
    assert {each["name"] for each in pod["volumes"]} == VOLUMES.keys() - {"kubelet-certificate"}
    assert len(pod["containers"][0]["volumeMounts"]) == len(CONTAINER["volumeMounts"]) - 1


def test_the_api_server_takes_the_manifests(plane: ControlPlane) -> None:
    written = plane.kubectl("kustomize", str(MANIFESTS / "node"))
    plane.kubectl("wait", "--for=delete", f"namespace/{AGENTS}", "--timeout=100s")
    # Objects of a namespace that is not there yet can't be tried without making it.
    documents = [each for each in yaml.safe_load_all(written) if "namespace" not in each["metadata"]]
    moved = [each for each in yaml.safe_load_all(written) if "namespace" in each["metadata"]]
    for each in moved:
        each["metadata"]["namespace"] = "default"
    text = yaml.safe_dump_all([*documents, *moved])
    told = plane.kubectl("create", "--dry-run=server", "-f", "-", input=text)
    assert told.count("(server dry run)") == len(documents) + len(moved)
    assert "daemonset.apps/holdfast-node created" in told
