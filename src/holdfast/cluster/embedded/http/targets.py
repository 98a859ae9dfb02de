"""What a request is about: a kind, and where its objects are."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeAlias

from aiohttp import web
from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.cluster.embedded.http.kinds import ServedVersion, find_kind, not_served
from holdfast.cluster.protocol import Cluster, Resource
from holdfast.cluster.whole import RawObject

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
