"""The kinds that are served: the built-in kinds that holdfast uses, and those of CustomResourceDefinitions."""

from collections.abc import Iterable

from holdfast.api.schema.crd import Schema
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import JSON
from holdfast.local.apiserver.builtin import jobs, others, pods
from holdfast.local.apiserver.kinds import KindHooks, ServedKind, type_schema

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"


def _builtin(
    plural: str,
    kind: str,
    *,
    group: str = "",
    namespaced: bool = True,
    has_status: bool = False,
    special: KindHooks | None = None,
    schema: str = "",
) -> ServedKind:
    return ServedKind(
        group=group,
        kind=kind,
        plural=plural,
        namespaced=namespaced,
        schemas={"v1": _object_schema(schema or kind)},
        stored_version="v1",
        has_status=has_status,
        special=special or KindHooks(),
    )


def _object_schema(name: str) -> Schema:
    schema = type_schema(name)
    common = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    return {**schema, "properties": {**schema["properties"], **common}}


def builtin_kinds() -> Iterable[ServedKind]:
    yield _builtin("namespaces", "Namespace", namespaced=False, has_status=True, special=others.NAMESPACES)
    yield _builtin("nodes", "Node", namespaced=False, has_status=True, special=others.NODES)
    yield _builtin("pods", "Pod", has_status=True, special=pods.PODS)
    yield _builtin("services", "Service", has_status=True, special=others.SERVICES)
    yield _builtin("configmaps", "ConfigMap", special=others.CONFIG_MAPS)
    yield _builtin("secrets", "Secret", special=others.SECRETS)
    yield _builtin("serviceaccounts", "ServiceAccount")
    yield _builtin("persistentvolumeclaims", "PersistentVolumeClaim", has_status=True, special=others.CLAIMS)
    yield _builtin("events", "Event", special=others.EVENTS)
    yield _builtin("jobs", "Job", group="batch", has_status=True, special=jobs.JOBS)
    yield _builtin("deployments", "Deployment", group="apps", has_status=True, special=others.DEPLOYMENTS)
    yield _builtin("leases", "Lease", group="coordination.k8s.io", special=others.LEASES)
    yield _builtin(
        "priorityclasses",
        "PriorityClass",
        group="scheduling.k8s.io",
        namespaced=False,
        special=pods.PRIORITY_CLASSES,
    )
    yield _builtin(
        "customresourcedefinitions",
        "CustomResourceDefinition",
        group="apiextensions.k8s.io",
        namespaced=False,
        has_status=True,
        special=others.DEFINITIONS,
        schema="Definition",
    )


class Catalog:
    def __init__(self) -> None:
        self._kinds = {kind.resource: kind for kind in builtin_kinds()}

    def find(self, resource: str, version: str) -> ServedKind:
        kind = self._kinds.get(resource)
        if kind is None or version not in kind.schemas:
            raise NotFound(f"the server could not find the requested resource ({resource} {version})")
        return kind

    def kind_of(self, resource: str) -> ServedKind | None:
        """The kind of a resource, whatever its versions."""
        return self._kinds.get(resource)

    def serves(self, api_version: str, kind: str) -> bool:
        group, _, version = api_version.rpartition("/")
        return any(
            (each.group, each.kind) == (group, kind) and version in each.schemas for each in self._kinds.values()
        )

    def define(self, definition: JSON) -> None:
        kind = others.defined_kind(definition)
        self._kinds[kind.resource] = kind

    def remove(self, name: str) -> None:
        """Stop serving a custom kind; the name of a definition is the resource that it defines."""
        self._kinds.pop(name, None)
