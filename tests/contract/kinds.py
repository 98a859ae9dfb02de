"""The kinds that the suite works with, read whole: a contract is about every field, not only those that we cache."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import AlreadyExists, NotFound
from holdfast.cluster.protocol import JSON, Cluster, Resource
from tests.control_plane.waiting import eventually

from .waiting import until


class Document(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Any object, with its parts as plain JSON."""

    spec: JSON = {}
    status: JSON = {}
    data: dict[str, str] = {}


def resource(group: str, version: str, kind: str, plural: str, *, namespaced: bool = True) -> Resource[Document]:
    return Resource(group=group, version=version, kind=kind, plural=plural, model=Document, namespaced=namespaced)


CONFIG_MAPS = resource("", "v1", "ConfigMap", "configmaps")
JOBS = resource("batch", "v1", "Job", "jobs")
NAMESPACES = resource("", "v1", "Namespace", "namespaces", namespaced=False)
NODES = resource("", "v1", "Node", "nodes", namespaced=False)
PODS = resource("", "v1", "Pod", "pods")
SERVICE_ACCOUNTS = resource("", "v1", "ServiceAccount", "serviceaccounts")
CLAIMS = resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
DEPLOYMENTS = resource("apps", "v1", "Deployment", "deployments")
EVENTS = resource("", "v1", "Event", "events")
SERVICES = resource("", "v1", "Service", "services")
DEFINITIONS = resource(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
PRIORITY_CLASSES = resource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False)

GROUP = "contract.holdfast.dev"
GADGETS = resource(GROUP, "v1", "Gadget", "gadgets")
RELICS = resource(GROUP, "v1", "Relic", "relics")
TRAINING_JOBS = resource("ml.example.com", "v1", "TrainingJob", "trainingjobs")

GADGET_SPEC: JSON = {
    "type": "object",
    "properties": {
        "size": {"type": "integer", "minimum": 0, "maximum": 100, "default": 1},
        "limit": {"type": "integer", "default": 100},
        "color": {"type": "string", "enum": ["red", "green"], "default": "red"},
        "code": {
            "type": "string",
            "pattern": "^[a-z]+$",
            "maxLength": 20,
            "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "code is fixed once it is given"}],
        },
        "parts": {
            "type": "array",
            "maxItems": 5,
            "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
        },
    },
    "x-kubernetes-validations": [
        {"rule": "self.size <= self.limit", "message": "size must not exceed limit", "fieldPath": ".size"}
    ],
}
GADGET_STATUS: JSON = {
    "type": "object",
    "properties": {"phase": {"type": "string"}, "count": {"type": "integer", "minimum": 0}},
}


def definition(custom: Resource[Document]) -> JSON:
    """A kind with the gadgets' schema and a status subresource."""
    properties = {"spec": GADGET_SPEC, "status": GADGET_STATUS}
    schema = {"type": "object", "required": ["spec"], "properties": properties}
    return {
        "metadata": {"name": f"{custom.plural}.{custom.group}"},
        "spec": {
            "group": custom.group,
            "scope": "Namespaced",
            "names": {"kind": custom.kind, "plural": custom.plural, "singular": custom.kind.lower()},
            "versions": [
                {
                    "name": custom.version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


async def install(cluster: Cluster, custom: Resource[Document], body: JSON) -> None:
    """Define the kind unless it is there already, and wait until the cluster serves it."""
    with suppress(AlreadyExists):
        await cluster.create(DEFINITIONS, body)
    await until(cluster, DEFINITIONS, Key("", f"{custom.plural}.{custom.group}"), established, "is established")
    await eventually(partial(served, cluster, custom), bool, what=f"{custom} is served")


async def served(cluster: Cluster, custom: Resource[Document]) -> bool:
    try:
        await cluster.list(custom)
    except NotFound:
        return False
    return True


def established(made: Document) -> bool:
    return any(c["type"] == "Established" and c["status"] == "True" for c in made.status.get("conditions") or ())


def gadget(name: str, *, spec: Mapping[str, Any] | None = None, **metadata: Any) -> JSON:
    return {"metadata": {"name": name, **metadata}, "spec": dict(spec or {})}


def config_map(name: str, *, data: Mapping[str, str] | None = None, **metadata: Any) -> JSON:
    return {"metadata": {"name": name, **metadata}, "data": dict(data or {})}


def owned_by(owner: Document, kind: Resource[Document], **more: Any) -> JSON:
    """An entry of metadata.ownerReferences."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        **more,
    }


def key_of(document: Object) -> Key:
    return document.metadata.key
