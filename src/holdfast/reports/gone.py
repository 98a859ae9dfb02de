"""Which jobs are gone for certain: a cache that lags, or is not filled yet, does not show a job that is there."""

from collections import OrderedDict

from holdfast.api.meta import Key
from holdfast.cluster.errors import NotFound, Undecodable
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import TRAINING_JOBS


class DeletedJobs:
    """Asks the cluster, and remembers at most `memory` jobs that are gone: a uid never comes back."""

    def __init__(self, cluster: Cluster, *, memory: int = 10_000) -> None:
        self._cluster = cluster
        self._memory = memory
        self._gone: OrderedDict[tuple[Key, str], None] = OrderedDict()

    async def is_gone(self, job: Key, uid: str) -> bool:
        """Raises a `ClusterError` when nobody can tell."""
        if (job, uid) in self._gone:
            return True
        try:
            found = await self._cluster.get(TRAINING_JOBS, job)
            if found.metadata.uid == uid:
                return False
        except Undecodable:
            return False  # no cache can show it, and it is there
        except NotFound:
            pass
        self._gone[job, uid] = None
        if len(self._gone) > self._memory:
            self._gone.popitem(last=False)
        return True
