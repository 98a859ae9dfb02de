"""What is served here: versions, groups and kinds, and of the kinds their schemas."""

from collections.abc import Sequence

from aiohttp import web

from holdfast import __version__
from holdfast.cluster.embedded.http.answers import json_response
from holdfast.cluster.embedded.http.kinds import ServedVersion, all_kinds, not_served
from holdfast.cluster.embedded.http.targets import CLUSTER
from holdfast.cluster.protocol import JSON

VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
# The Kubernetes whose behaviour is served.
MAJOR, MINOR = "1", "36"


async def version(_request: web.Request) -> web.Response:
    return json_response({"major": MAJOR, "minor": MINOR, "gitVersion": f"v{MAJOR}.{MINOR}.0+holdfast-{__version__}"})


async def core_versions(_request: web.Request) -> web.Response:
    return json_response({"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"]})


async def groups(request: web.Request) -> web.Response:
    versions: dict[str, list[str]] = {}
    for kind in await all_kinds(request.app[CLUSTER]):
        known = versions.setdefault(kind.resource.group, [])
        if kind.resource.group and kind.resource.version not in known:
            known.append(kind.resource.version)
    named = [_group(group, names) for group, names in versions.items() if group]
    return json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": named})


async def resources(request: web.Request) -> web.Response:
    path = request.match_info
    api_version = f"{path['group']}/{path['version']}" if "group" in path else path["version"]
    kinds = [kind for kind in await all_kinds(request.app[CLUSTER]) if kind.resource.api_version == api_version]
    if not kinds:
        raise not_served(api_version)
    entries = [entry for kind in kinds for entry in _entries(kind)]
    return json_response(
        {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": entries}
    )


def _group(group: str, versions: Sequence[str]) -> JSON:
    named = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": named, "preferredVersion": named[0]}


def _entries(kind: ServedVersion) -> list[JSON]:
    known, resource = kind.known, kind.resource
    common: JSON = {"namespaced": resource.namespaced, "kind": resource.kind}
    entries: list[JSON] = [
        {
            **common,
            "name": resource.plural,
            "singularName": known.singular,
            "verbs": VERBS,
            "shortNames": list(known.short_names),
            "categories": list(known.categories),
        }
    ]
    part: JSON = {**common, "singularName": "", "verbs": ["get", "patch", "update"]}
    if known.has_status:
        entries.append({**part, "name": f"{resource.plural}/status"})
    if known.has_scale:
        scale = {"name": f"{resource.plural}/scale", "group": "autoscaling", "version": "v1", "kind": "Scale"}
        entries.append({**part, **scale})
    if str(resource) == "pods":
        entries.append({**part, "name": "pods/log", "verbs": ["get"]})
    return entries
