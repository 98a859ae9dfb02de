"""The reports of TrainingJobs' workers: what their sidecars are told, and the inbox that the controller reads from."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

from aiohttp import web
from msgspec import structs

from holdfast.api.core.objects import Node, Pod
from holdfast.api.meta import Key
from holdfast.api.reports import AUDIENCE, ReportReply, WorkerReport, encode_endpoint
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import NODES, PODS, TRAINING_JOBS
from holdfast.runtime.authentication import TokenReviewCache
from holdfast.runtime.backup_requests import BackupRequests
from holdfast.runtime.deleted_objects import DeletedObjects
from holdfast.runtime.informer import Store
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now, boottime_s
from holdfast.runtime.report_server import ReportHandler, ReportingKind, ReportingPod, serve_reports
from holdfast.trainingjob.reports.authorization import BY_ATTEMPT, attempt_of, find_reply, save_notice, worker_pod
from holdfast.trainingjob.reports.inbox import Inbox, ReceiverUptime

Sink: TypeAlias = Callable[[Key, WorkerReport], None]


class TrainingJobReports:
    """A `ReportingKind`. `pods` has the index `attempt_of`."""

    noun = "a worker of a TrainingJob"

    def __init__(
        self,
        *,
        pods: Store[Pod],
        nodes: Store[Node],
        jobs: Store[TrainingJob],
        deleted_jobs: DeletedObjects,
        uptime: ReceiverUptime,
        sink: Sink,
    ) -> None:
        self._pods = pods
        self._nodes = nodes
        self._jobs = jobs
        self._gone = deleted_jobs
        self._uptime = uptime
        self._sink = sink

    def caller(self, pod: Pod) -> ReportingPod | None:
        return worker_pod(pod)

    async def reply(self, caller: ReportingPod, batch: WorkerReport) -> ReportReply:
        reply = await find_reply(caller, batch.uid, self._jobs, self._gone.is_gone)
        return (
            reply if reply.attempt_over else structs.replace(reply, save=save_notice(caller, self._pods, self._nodes))
        )

    def receive(self, caller: ReportingPod, batch: WorkerReport) -> None:
        self._sink(caller.job, batch)

    def missed(self, job: Key | None) -> None:
        self._uptime.reset(job)


class ReportReceiver:
    """Workers get no endpoint before the server is open. `clock` also counts while the host sleeps.

    `backups` are those that sidecars are to take: the controller of CheckpointBackups shares it.
    """

    def __init__(
        self, *, now: Now, clock: Callable[[], float] = boottime_s, backups: BackupRequests | None = None
    ) -> None:
        self._now = now
        self.backups = backups if backups is not None else BackupRequests()
        self.clock = clock
        self.inbox = Inbox(now=now, clock=clock)
        self.uptime = ReceiverUptime(clock)
        self.endpoint_json: str | None = None
        """The URL and the certificate authority to report to, as in the file that each worker gets."""

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
        routes: Iterable[web.RouteDef] = (),
        others: Sequence[ReportingKind] = (),
    ) -> AsyncIterator[None]:
        """Receive reports inside the block, before the operator runs. `address` is how pods reach this process.

        `routes`: what the same server answers besides. `others`: the other kinds whose pods report.
        """
        pods = operator.store(PODS, {BY_ATTEMPT: attempt_of})
        workers = TrainingJobReports(
            pods=pods,
            nodes=operator.store(NODES),
            jobs=operator.store(TRAINING_JOBS),
            deleted_jobs=DeletedObjects(cluster, TRAINING_JOBS),
            uptime=self.uptime,
            sink=self.inbox.put,
        )
        handler = ReportHandler(
            kinds=(workers, *others),
            pods=pods,
            reviews=TokenReviewCache(cluster, AUDIENCE, now=self._now),
            leading=leading,
            backups=self.backups,
            now=self._now,
        )
        async with serve_reports(handler, address=address, port=port, host=host, routes=routes) as endpoint:
            self.endpoint_json = encode_endpoint(endpoint)
            uptime_task = asyncio.create_task(self.uptime.run(), name="hearing")
            try:
                yield
            finally:
                uptime_task.cancel()
                await asyncio.wait([uptime_task])
