"""Where the workers' reports arrive for the controller that writes them into status."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import NODES, PODS, TRAINING_JOBS
from holdfast.reports.callers import BY_ATTEMPT, attempt_of
from holdfast.reports.endpoint import encode_endpoint
from holdfast.reports.gone import DeletedJobs
from holdfast.reports.hearing import ReceiverUptime
from holdfast.reports.inbox import Inbox
from holdfast.reports.reviews import TokenReviewCache
from holdfast.reports.server import ReportHandler, serve
from holdfast.reports.wire import AUDIENCE
from holdfast.runtime.clocks import Now, boottime_s
from holdfast.runtime.operator import Operator


class ReportReceiver:
    """Before it is open, nobody is told where to report. `clock` also counts while the machine sleeps."""

    def __init__(self, *, now: Now, clock: Callable[[], float] = boottime_s) -> None:
        self._now = now
        self.clock = clock
        self.inbox = Inbox(now=now, clock=clock)
        self.hearing = ReceiverUptime(clock)
        self.endpoint_json: str | None = None
        """Where to report and whom to trust there, as the file says it that each worker is given."""

    @asynccontextmanager
    async def serve(
        self,
        operator: Operator,
        cluster: Cluster,
        *,
        leading: Callable[[], bool],
        address: str,
        port: int,
        host: str | None = None,
    ) -> AsyncIterator[None]:
        """Take reports inside the block, before the operator runs. `address` is how pods reach this process."""
        desk = ReportHandler(
            pods=operator.store(PODS, {BY_ATTEMPT: attempt_of}),
            nodes=operator.store(NODES),
            jobs=operator.store(TRAINING_JOBS),
            reviews=TokenReviewCache(cluster, AUDIENCE, now=self._now),
            gone=DeletedJobs(cluster),
            hearing=self.hearing,
            leading=leading,
            sink=self.inbox.put,
        )
        async with serve(desk, address=address, port=port, host=host) as endpoint:
            self.endpoint_json = encode_endpoint(endpoint)
            attending = asyncio.create_task(self.hearing.run(), name="hearing")
            try:
                yield
            finally:
                attending.cancel()
                await asyncio.wait([attending])
