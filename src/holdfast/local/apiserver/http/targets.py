"""The target of a request: a served kind, and the key of an object."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeAlias

from aiohttp import web
from msgspec import Struct, field

from holdfast.api.kind import PrinterColumn
from holdfast.api.meta import Key, Object
from holdfast.api.schema.crd import Schema
from holdfast.cluster.errors import NotFound
from holdfast.cluster.printing.columns import printer_columns
from holdfast.cluster.protocol import Cluster, Resource
from holdfast.cluster.resources import BUILTIN, KnownKind, RawObject

# The served kinds: the built-in ones, and those of the cluster's CustomResourceDefinitions.


class ScalePaths(Struct, frozen=True, kw_only=True, rename="camel"):
    spec_replicas_path: str
    status_replicas_path: str
    label_selector_path: str = ""


class Subresources(Struct, frozen=True, kw_only=True):
    status: dict[str, Any] | None = None
    scale: ScalePaths | None = None


class DefinitionColumn(Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    json_path: str
    type: str = "string"
    priority: int = 0
    description: str = ""


class VersionSchema(Struct, frozen=True, kw_only=True):
    schema: Schema = field(default_factory=dict, name="openAPIV3Schema")


class Version(Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    served: bool = True
    schema: VersionSchema = VersionSchema()
    subresources: Subresources = Subresources()
    additional_printer_columns: tuple[DefinitionColumn, ...] = ()


class Names(Struct, frozen=True, kw_only=True, rename="camel"):
    kind: str
    plural: str
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


class DefinitionSpec(Struct, frozen=True, kw_only=True):
    group: str
    names: Names
    scope: str
    versions: tuple[Version, ...]


class Definition(Object, frozen=True, kw_only=True):
    spec: DefinitionSpec


class ServedVersion(Struct, frozen=True, kw_only=True):
    """One version of a kind."""

    known: KnownKind
    schema: Schema = {}
    scale: ScalePaths | None = None

    @property
    def resource(self) -> Resource[RawObject]:
        return self.known.resource


DEFINITIONS = Resource(
    group="apiextensions.k8s.io",
    version="v1",
    kind="CustomResourceDefinition",
    plural="customresourcedefinitions",
    model=Definition,
    namespaced=False,
)
_BUILTIN = {(known.resource.api_version, known.resource.plural): ServedVersion(known=known) for known in BUILTIN}


async def find_kind(cluster: Cluster, group: str, version: str, plural: str) -> ServedVersion:
    """The kind that a URL path names; raises `NotFound`."""
    api_version = f"{group}/{version}" if group else version
    if builtin := _BUILTIN.get((api_version, plural)):
        return builtin
    try:
        definition = await cluster.get(DEFINITIONS, Key("", f"{plural}.{group}"))
    except NotFound:
        raise not_served(f"{api_version} {plural}") from None
    for each in definition.spec.versions:
        if each.name == version and each.served:
            return _defined(definition.spec, each)
    raise not_served(f"{api_version} {plural}")


async def all_kinds(cluster: Cluster) -> list[ServedVersion]:
    definitions = (await cluster.list(DEFINITIONS)).items
    custom = [_defined(each.spec, version) for each in definitions for version in each.spec.versions if version.served]
    return [*_BUILTIN.values(), *custom]


def not_served(what: str) -> NotFound:
    return NotFound(f"the server could not find the requested resource ({what})")


def _defined(spec: DefinitionSpec, version: Version) -> ServedVersion:
    names = spec.names
    columns = [
        PrinterColumn(
            name=each.name, path=each.json_path, type=each.type, wide=each.priority > 0, description=each.description
        )
        for each in version.additional_printer_columns
    ]
    known = KnownKind(
        resource=Resource(
            group=spec.group,
            version=version.name,
            kind=names.kind,
            plural=names.plural,
            model=RawObject,
            namespaced=spec.scope == "Namespaced",
        ),
        singular=names.singular or names.kind.lower(),
        short_names=names.short_names,
        categories=names.categories,
        columns=printer_columns(columns),
        has_status=version.subresources.status is not None,
        has_scale=version.subresources.scale is not None,
    )
    return ServedVersion(known=known, schema=version.schema.schema, scale=version.subresources.scale)


CLUSTER = web.AppKey("cluster", Cluster)
NOW: web.AppKey[Callable[[], datetime]] = web.AppKey("now")

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RequestTarget(Struct, frozen=True, kw_only=True):
    cluster: Cluster
    kind: ServedVersion
    key: Key
    now: Callable[[], datetime]

    @property
    def resource(self) -> Resource[RawObject]:
        return self.kind.resource


async def target_of(request: web.Request) -> RequestTarget:
    cluster, path = request.app[CLUSTER], request.match_info
    kind = await find_kind(cluster, path.get("group", ""), path["version"], path["plural"])
    namespace, name = path.get("namespace", ""), path.get("name", "")
    if namespace and not kind.resource.namespaced:
        raise not_served(f"{kind.resource} is not in a namespace")
    if name and kind.resource.namespaced and not namespace:
        raise not_served(f"{kind.resource} is in a namespace")
    return RequestTarget(cluster=cluster, kind=kind, key=Key(namespace, name), now=request.app[NOW])
