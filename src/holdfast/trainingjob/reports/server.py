"""Receives sidecar reports over TLS; each comes from an authenticated pod, and only about that pod's own job."""

import asyncio
import ipaddress
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeAlias

import structlog
from aiohttp import web
from msgspec import structs

from holdfast.api import reports
from holdfast.api.backup_runs import BackupProgress
from holdfast.api.core.objects import Node, Pod
from holdfast.api.meta import Key
from holdfast.api.reports import AUDIENCE, Endpoint, InvalidReport, ReportReply, WorkerReport, encode_endpoint
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.certificate import self_signed_identity
from holdfast.cluster.errors import BadRequest, ClusterError, Invalid
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import NODES, PODS, TRAINING_JOBS
from holdfast.httpserver import BadBody, Limits, read_body
from holdfast.runtime.authentication import (
    MEMORY,
    HttpRefusal,
    RequestAuthenticator,
    TokenReviewCache,
    bearer_token,
    clock_s,
    json_response,
    refusal_response,
)
from holdfast.runtime.backup_requests import BackupOfAnotherPod, BackupRequests
from holdfast.runtime.http import RateLimiter, serve_app
from holdfast.runtime.informer import Store
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now, boottime_s
from holdfast.trainingjob.reports.authorization import (
    BY_ATTEMPT,
    DeletedJobs,
    NotInCacheYet,
    ReportingPod,
    ReportNotAllowed,
    attempt_of,
    ensure_own_report,
    find_reply,
    identify_pod,
    save_notice,
    trainer_succeeded,
)
from holdfast.trainingjob.reports.inbox import Inbox, InboxFull, ReceiverUptime

Sink: TypeAlias = Callable[[Key, WorkerReport], None]

# A sidecar reports every five seconds, and at once when an epoch ends.
BURST, REFILL_S = 20, 1.0
BODY_WITHIN_S = 10.0
# A connection for each sidecar of a large cluster.
LIMITS = Limits(connections=16_384, fresh=256, per_peer=1024)
# Errors that an API server returns because of the request itself, for any caller.
CAUSED_BY_A_REQUEST = (BadRequest, Invalid)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class ReportHandler:
    """Handles report requests. `leading`: a standby refuses reports, since the leader would never get them.

    `pods` has the index `attempt_of`.
    """

    def __init__(
        self,
        *,
        pods: Store[Pod],
        nodes: Store[Node],
        jobs: Store[TrainingJob],
        reviews: TokenReviewCache,
        deleted_jobs: DeletedJobs,
        uptime: ReceiverUptime,
        leading: Callable[[], bool],
        sink: Sink,
        backups: BackupRequests,
        now: Now,
    ) -> None:
        self._pods = pods
        self._nodes = nodes
        self._jobs = jobs
        self._reviews = reviews
        self._gone = deleted_jobs
        self._uptime = uptime
        self._leading = leading
        self._sink = sink
        self._backups = backups
        self._now = now
        self._authenticator = RequestAuthenticator(reviews)
        self._pod_limit: RateLimiter[str] = RateLimiter(burst=BURST, refill_s=REFILL_S, memory=MEMORY)
        self._last_sequences: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def application(self, routes: Iterable[web.RouteDef] = ()) -> web.Application:
        """Of the reports, and of `routes` that others add to their server."""
        app = web.Application(client_max_size=reports.LARGEST_BODY)
        app.router.add_post(reports.PATH, self._handle)
        app.router.add_routes(routes)
        return app

    async def _handle(self, request: web.Request) -> web.Response:
        try:
            return await self._receive(request)
        except (HttpRefusal, BadBody) as refusal:
            log.debug("report refused", peer=request.remote, status=refusal.status, reason=str(refusal))
            return refusal_response(refusal.status, str(refusal))
        except (ReportNotAllowed, BackupOfAnotherPod, InvalidReport) as error:
            log.info("report refused", peer=request.remote, reason=str(error))
            return refusal_response(400 if isinstance(error, InvalidReport) else 403, str(error))
        except (NotInCacheYet, InboxFull) as error:
            return refusal_response(503, str(error))
        except ClusterError as error:
            job = self._job_of(request)
            if job is not None or not isinstance(error, CAUSED_BY_A_REQUEST):
                self._uptime.reset(job)
            log.warning("report not taken: the cluster can't be asked about it", reason=str(error))
            return refusal_response(503, "the cluster can't be asked about it at the moment: try again later")
        except Exception:
            # Only a known worker resets the uptime: the request of an unknown client may itself cause the error.
            if (job := self._job_of(request)) is not None:
                self._uptime.reset(job)
            log.exception("report not taken")
            return refusal_response(500, "an error in holdfast: the operator's log says more")

    def _job_of(self, request: web.Request) -> Key | None:
        """The job of a worker whose token was reviewed before; None for an unknown client."""
        try:
            identity = self._reviews.last_identity(bearer_token(request))
            return identify_pod(identity, self._pods).job if identity is not None else None
        except (HttpRefusal, ReportNotAllowed, NotInCacheYet):
            return None

    async def _receive(self, request: web.Request) -> web.Response:
        if not self._leading():
            raise HttpRefusal(503, "this operator does not lead: look for the address of the one that does")
        identity, _ = await self._authenticator.identify(request)
        caller = identify_pod(identity, self._pods)
        if not self._pod_limit.take(caller.uid, clock_s()):
            raise HttpRefusal(429, f"pod {caller.pod} reports too often: send more in one report")
        batch = reports.decode(await read_body(request, BODY_WITHIN_S))
        ensure_own_report(caller, batch)
        reply = await find_reply(caller, batch.uid, self._jobs, self._gone.is_gone)
        if reply.attempt_over:
            return json_response(reply, status=409)
        if batch.backup is not None:
            self._backups.record(caller.uid, batch.backup)
        if self._is_first(caller, batch):
            self._sink(caller.job, batch)
            self._record_sequence(caller, batch)
        ended_well, save = trainer_succeeded(caller, self._pods), save_notice(caller, self._pods, self._nodes)
        reply = structs.replace(reply, ended_well=ended_well, save=save)
        return json_response(self._with_backup(reply, caller, batch.backup))

    def _with_backup(self, reply: ReportReply, caller: ReportingPod, progress: BackupProgress | None) -> ReportReply:
        return structs.replace(
            reply,
            backup=self._backups.wanted(caller.uid, self._now()),
            backup_withdrawn=progress is not None and self._backups.is_withdrawn(progress),
        )

    def _is_first(self, caller: ReportingPod, batch: WorkerReport) -> bool:
        """A report that is resent because its reply was lost gets a reply, but is not counted twice."""
        run, sequence = self._last_sequences.get(caller.uid, ("", 0))
        return run != batch.run or batch.sequence > sequence

    def _record_sequence(self, caller: ReportingPod, batch: WorkerReport) -> None:
        self._last_sequences[caller.uid] = (batch.run, batch.sequence)
        self._last_sequences.move_to_end(caller.uid)
        if len(self._last_sequences) > MEMORY:
            self._last_sequences.popitem(last=False)


@asynccontextmanager
async def serve(
    handler: ReportHandler, *, address: str, port: int, host: str | None = None, routes: Iterable[web.RouteDef] = ()
) -> AsyncIterator[Endpoint]:
    """Serve inside the block. `address` is how pods reach this process; `host` is what to listen on, all by default."""
    identity = self_signed_identity(address)
    serving = serve_app(
        handler.application(routes),
        host=host,
        port=port,
        option="--reports-port",
        limits=LIMITS,
        tls=identity.context,
    )
    async with serving as bound_port:
        url_host = f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
        yield Endpoint(url=f"https://{url_host}:{bound_port}", authority=identity.authority.decode())


# The controller's side: the inbox that it reads reports from, and the server that fills the inbox.


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
    ) -> AsyncIterator[None]:
        """Receive reports inside the block, before the operator runs. `address` is how pods reach this process.

        `routes`: what the same server answers besides.
        """
        handler = ReportHandler(
            pods=operator.store(PODS, {BY_ATTEMPT: attempt_of}),
            nodes=operator.store(NODES),
            jobs=operator.store(TRAINING_JOBS),
            reviews=TokenReviewCache(cluster, AUDIENCE, now=self._now),
            deleted_jobs=DeletedJobs(cluster),
            uptime=self.uptime,
            leading=leading,
            sink=self.inbox.put,
            backups=self.backups,
            now=self._now,
        )
        async with serve(handler, address=address, port=port, host=host, routes=routes) as endpoint:
            self.endpoint_json = encode_endpoint(endpoint)
            uptime_task = asyncio.create_task(self.uptime.run(), name="hearing")
            try:
                yield
            finally:
                uptime_task.cancel()
                await asyncio.wait([uptime_task])
