"""Our manifests on a control plane, and the tokens that agents on its nodes have."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.control_plane import logins
from tests.control_plane.api import JSON, MERGE, Api
from tests.control_plane.kubectl import KubectlFailed
from tests.control_plane.server import ControlPlane

MANIFESTS = Path(__file__).parents[2] / "manifests"
AGENTS = "holdfast-node"
OPERATOR = "holdfast-system"
BACKUPS = "/apis/migration.dcnlab.com/v1"


@contextmanager
def deployed(plane: ControlPlane, *folders: str) -> Iterator[ControlPlane]:
    """Folders of manifests, applied in their order. What an earlier test has deleted is gone before."""
    for namespace in (AGENTS, OPERATOR):
        plane.kubectl("wait", "--for=delete", f"namespace/{namespace}", "--timeout=100s")
    for folder in folders:
        plane.kubectl("apply", "--server-side", "-k", str(MANIFESTS / folder))
    try:
        yield plane
    finally:
        for folder in reversed(folders):
            plane.kubectl("delete", "--wait=false", "--ignore-not-found", "-k", str(MANIFESTS / folder))


def may(plane: ControlPlane, account: str, verb: str, resource: str, *scope: str) -> bool:
    """Whether an account has a right, by kubectl's question for it."""
    try:
        return plane.kubectl("auth", "can-i", verb, resource, f"--as={account}", *scope).strip() == "yes"
    except KubectlFailed as refused:
        if not refused.output.strip().endswith("no"):
            raise  # any other failure is no answer
        return False


class NodeAgentLogin(NamedTuple):
    """What the agent of one node has: a token for the API server, and one for the operator."""

    node: str
    api: Api
    token: str
    operator_token: str


async def agent_on(plane: ControlPlane, node: str) -> NodeAgentLogin:
    """A pod of the agents' account on a node, with its tokens, as its kubelet would ask for them."""
    name = f"agent-{secrets.token_hex(3)}"
    container = {"name": "agent", "image": "registry.invalid/holdfast:1"}
    spec = {"serviceAccountName": AGENTS, "nodeName": node, "containers": [container]}
    body = {"metadata": {"name": name}, "spec": {**spec, "tolerations": [{"operator": "Exists"}]}}
    pod = await plane.api.request("POST", f"/api/v1/namespaces/{AGENTS}/pods", body)

    def token(*audience: str) -> str:
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={name}")
        uid = f"--bound-object-uid={pod['metadata']['uid']}"
        return plane.kubectl("create", "token", AGENTS, f"--namespace={AGENTS}", *bound, uid, *audience).strip()

    own = token()
    return NodeAgentLogin(node, Api(plane.url, plane.ca_file, own), own, token("--audience=holdfast.dev/node"))


def operator_login(plane: ControlPlane) -> Path:
    """A kubeconfig of the operator's own account."""
    token = plane.kubectl("create", "token", "holdfast-operator", f"--namespace={OPERATOR}").strip()
    return logins.with_token(plane.folder / "deployed-operator.kubeconfig", plane.url, plane.ca_file, token)


async def backup_on(plane: ControlPlane, namespace: str, node: str, *, registry: JSON | None = None) -> JSON:
    """A CheckpointBackup with a run on a node that is under way."""
    where = {"url": "registry.example.com", "repository": "team/app", **(registry or {})}
    spec = {"schedule": "immediately", "podRef": {"name": "bert"}, "registry": where}
    body = {"apiVersion": "migration.dcnlab.com/v1", "kind": "CheckpointBackup", "spec": spec}
    metadata = {"generateName": "save-", "labels": {"holdfast.dev/node": node}}
    path = f"{BACKUPS}/namespaces/{namespace}/checkpointbackups"
    made = await plane.api.request("POST", path, {**body, "metadata": metadata})
    status = {"run": 3, "nodeName": node, "podUID": "u1", "mode": "container", "startTime": "2026-01-01T00:00:00Z"}
    return await write_status(plane.api, made, **status)


async def write_status(api: Api, backup: JSON, **status: object) -> JSON:
    async with api.session() as session:
        return await session.request("PATCH", f"{path_of(backup)}/status", {"status": status}, content_type=MERGE)


def path_of(backup: JSON) -> str:
    metadata = backup["metadata"]
    return f"{BACKUPS}/namespaces/{metadata['namespace']}/checkpointbackups/{metadata['name']}"
