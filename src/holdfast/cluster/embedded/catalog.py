"""The kinds that are served now: Kubernetes' own that holdfast uses, and those that definitions add."""

from collections.abc import Iterable

from holdfast.api.schema import Schema
from holdfast.cluster.embedded.kind import ServedKind, Special
from holdfast.cluster.embedded.kinds import (
    claims,
    data,
    definitions,
    deployments,
    jobs,
    namespaces,
    others,
    pods,
    priorities,
    services,
)
from holdfast.cluster.embedded.types import type_schema
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import JSON

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"


def _own(
    plural: str,
    kind: str,
    *,
    group: str = "",
    namespaced: bool = True,
    has_status: bool = False,
    special: Special | None = None,
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
        special=special or Special(),
    )


def _object_schema(name: str) -> Schema:
    schema = type_schema(name)
    common = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    return {**schema, "properties": {**schema["properties"], **common}}


def own_kinds() -> Iterable[ServedKind]:
    yield _own("namespaces", "Namespace", namespaced=False, has_status=True, special=namespaces.NAMESPACES)
    yield _own("nodes", "Node", namespaced=False, has_status=True, special=others.NODES)
    yield _own("pods", "Pod", has_status=True, special=pods.PODS)
    yield _own("services", "Service", has_status=True, special=services.SERVICES)
    yield _own("configmaps", "ConfigMap", special=data.CONFIG_MAPS)
    yield _own("secrets", "Secret", special=data.SECRETS)
    yield _own("serviceaccounts", "ServiceAccount")
    yield _own("persistentvolumeclaims", "PersistentVolumeClaim", has_status=True, special=claims.CLAIMS)
    yield _own("events", "Event", special=others.EVENTS)
    yield _own("jobs", "Job", group="batch", has_status=True, special=jobs.JOBS)
    yield _own("deployments", "Deployment", group="apps", has_status=True, special=deployments.DEPLOYMENTS)
    yield _own("leases", "Lease", group="coordination.k8s.io", special=others.LEASES)
    yield _own(
        "priorityclasses",
        "PriorityClass",
        group="scheduling.k8s.io",
        namespaced=False,
        special=priorities.PRIORITY_CLASSES,
    )
    yield _own(
        "customresourcedefinitions",
        "CustomResourceDefinition",
        group="apiextensions.k8s.io",
        namespaced=False,
        has_status=True,
        special=definitions.DEFINITIONS,
        schema="Definition",
    )


class Catalog:
    def __init__(self) -> None:
        self._kinds = {kind.resource: kind for kind in own_kinds()}

    def find(self, resource: str, version: str) -> ServedKind:
        kind = self._kinds.get(resource)
        if kind is None or version not in kind.schemas:
            raise NotFound(f"the server could not find the requested resource ({resource} {version})")
        return kind

    def kind_of(self, resource: str) -> ServedKind | None:
        """The kind that objects are filed under, whatever its versions."""
        return self._kinds.get(resource)

    def serves(self, api_version: str, kind: str) -> bool:
        group, _, version = api_version.rpartition("/")
        return any(
            (each.group, each.kind) == (group, kind) and version in each.schemas for each in self._kinds.values()
        )

    def define(self, definition: JSON) -> None:
        kind = definitions.defined_kind(definition)
        self._kinds[kind.resource] = kind

    def undefine(self, name: str) -> None:
        """A definition's name is the resource that it defines."""
        self._kinds.pop(name, None)
