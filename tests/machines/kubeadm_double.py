"""A kubeadm that checks all that it is told, and then does what kubeadm and the kubelet would: the Node is there."""

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import yaml
from msgspec import Struct

from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import JSON, Cluster, Resource
from holdfast.times import parse_time
from tests.contract.kinds import NODES
from tests.control_plane.nodes import FAKE, HOSTNAME


class TypedSecret(Object, frozen=True, kw_only=True):
    type: str = ""
    data: dict[str, str] = {}


_SECRETS = Resource(group="", version="v1", kind="Secret", plural="secrets", model=TypedSecret)
GROUP = "system:bootstrappers:kubeadm:default-node-token"
ROOM = {"cpu": "8", "memory": "30Gi", "pods": "110", "ephemeral-storage": "90Gi"}


class Wanted(Struct, frozen=True, kw_only=True):
    """What the JoinConfiguration of a machine has to say."""

    node_name: str
    provider_id: str
    uid: str
    endpoint: str
    ca_cert_hashes: tuple[str, ...]
    tokens: tuple[str, ...] = ()
    """Of users; any other has to be a bootstrap token of the cluster."""


class Refused(Exception):
    """kubeadm would end with an error; the text is what it prints."""


async def check(cluster: Cluster, text: str, wanted: Wanted, now: datetime) -> None:
    """The whole document, field by field: one that is unknown here is an error."""
    document = yaml.safe_load(text)
    token = _token_of(document)
    expected = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "discovery": {
            "bootstrapToken": {
                "apiServerEndpoint": wanted.endpoint,
                "token": token,
                "caCertHashes": list(wanted.ca_cert_hashes),
            },
            "tlsBootstrapToken": token,
        },
        "nodeRegistration": {
            "name": wanted.node_name,
            "taints": [],
            "kubeletExtraArgs": [
                {"name": "node-labels", "value": f"holdfast.dev/spot=true,holdfast.dev/instance={wanted.uid}"},
                {"name": "provider-id", "value": wanted.provider_id},
            ],
        },
        "patches": {"directory": "/run/holdfast/patches"},
        "timeouts": _durations(document.get("timeouts"), ("discovery", "tlsBootstrap", "kubeletHealthCheck")),
    }
    if document != expected:
        raise Refused(f"error: the JoinConfiguration is not as it should be: {document} instead of {expected}")
    if token not in wanted.tokens:
        await _check_bootstrap_token(cluster, token, now)


def _token_of(document: Mapping[str, Any]) -> str:
    try:
        return str(document["discovery"]["tlsBootstrapToken"])
    except (KeyError, TypeError) as error:
        raise Refused(f"error: no token: {error}") from None


def _durations(given: Any, names: Sequence[str]) -> Any:
    """As they are, if they are durations as Go writes them."""
    if not isinstance(given, dict) or sorted(given) != sorted(names):
        return dict.fromkeys(names, "a duration")
    return {name: value if re.fullmatch(r"[0-9]+s", str(value)) else "a duration" for name, value in given.items()}


async def _check_bootstrap_token(cluster: Cluster, token: str, now: datetime) -> None:
    """As the API server checks it, and the controller that signs cluster-info with it."""
    identifier, _, secret = token.partition(".")
    try:
        found = await cluster.get(_SECRETS, Key("kube-system", f"bootstrap-token-{identifier}"))
    except NotFound:
        raise Refused(f'error: token id "{identifier}" is invalid for this cluster or it has expired') from None
    data = {name: base64.b64decode(value).decode() for name, value in found.data.items()}
    expires = parse_time(data.pop("expiration"))
    if not data.pop("description"):
        raise Refused("error: nobody can see whom the token is for")
    wanted = {
        "token-id": identifier,
        "token-secret": secret,
        "usage-bootstrap-signing": "true",
        "usage-bootstrap-authentication": "true",
        "auth-extra-groups": GROUP,
    }
    if found.type != "bootstrap.kubernetes.io/token" or data != wanted or expires <= now:
        raise Refused(
            f"error: the token is {found.type} {data}, and ends at {expires}; it should be {wanted}, and last"
        )


def node_body(wanted: Wanted, *, name: str, gpus: int, ready: bool, now: str) -> JSON:
    """As a kubelet registers itself; kwok or nobody keeps it alive."""
    labels = {HOSTNAME: name, "holdfast.dev/spot": "true", "holdfast.dev/instance": wanted.uid}
    room = ROOM | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    condition = {
        "type": "Ready",
        "status": "True" if ready else "False",
        "reason": "KubeletReady" if ready else "KubeletNotReady",
        "message": "" if ready else "container runtime network not ready",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    return {
        "metadata": {"name": name, "labels": labels | ({FAKE: "true"} if ready else {})},
        "spec": {"providerID": wanted.provider_id},
        "status": {"capacity": room, "allocatable": room, "conditions": [condition]},
    }


async def register(cluster: Cluster, body: JSON) -> None:
    await cluster.create(NODES, body)
