"""Objects that are certainly deleted: a cache that lags, or is not synced yet, may lack one that exists."""

from collections import OrderedDict
from typing import Any

from holdfast.api.meta import Key
from holdfast.cluster.errors import NotFound, Undecodable
from holdfast.cluster.protocol import Cluster, Resource


class DeletedObjects:
    """Queries the cluster, and caches at most `memory` deleted objects: a uid never comes back."""

    def __init__(self, cluster: Cluster, resource: Resource[Any], *, memory: int = 10_000) -> None:
        self._cluster = cluster
        self._resource = resource
        self._memory = memory
        self._gone: OrderedDict[tuple[Key, str], None] = OrderedDict()

    async def is_gone(self, key: Key, uid: str) -> bool:
        """Raises a `ClusterError` when the query fails."""
        if (key, uid) in self._gone:
            return True
        try:
            found = await self._cluster.get(self._resource, key)
            if found.metadata.uid == uid:
                return False
        except Undecodable:
            return False  # no cache can hold the object, but it exists
        except NotFound:
            pass
        self._gone[key, uid] = None
        if len(self._gone) > self._memory:
            self._gone.popitem(last=False)
        return True
