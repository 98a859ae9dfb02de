"""Receives sidecar reports over TLS; each comes from an authenticated pod, and only about that pod's own job.

Pods of several kinds report. What a pod is, how its sidecar is answered and where its report goes is up to its kind.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import structlog
from aiohttp import web
from msgspec import Struct, structs

from holdfast.api import reports
from holdfast.api.backup_runs import BackupProgress
from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.api.reports import Endpoint, InvalidReport, ReportReply, WorkerReport
from holdfast.cluster.certificate import self_signed_identity
from holdfast.cluster.errors import BadRequest, ClusterError, Invalid
from holdfast.cluster.protocol import Identity
from holdfast.errors import HoldfastError
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
from holdfast.runtime.process import Now

# A sidecar reports every five seconds, and at once when an epoch ends.
BURST, REFILL_S = 20, 1.0
BODY_WITHIN_S = 10.0
# A connection for each sidecar of a large cluster.
LIMITS = Limits(connections=16_384, fresh=256, per_peer=1024)
# Errors that an API server returns because of the request itself, for any caller.
CAUSED_BY_A_REQUEST = (BadRequest, Invalid)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class ReportNotAllowed(HoldfastError):
    """The caller is authenticated, but may not send this report."""


class NotInCacheYet(HoldfastError):
    """The caches do not have the caller's pod or job yet; the caller may retry."""


class ReportsPending(HoldfastError):
    """Reports of a job arrive faster than they are used: the caller may send this one again later."""


class ReportingPod(Struct, frozen=True):
    """The pod of a worker or a replica, as the cluster knows it. `index` is that of the worker in its job."""

    pod: Key
    uid: str
    job: Key
    attempt: int
    index: int


class ReportingKind(Protocol):
    """A kind whose pods have a sidecar."""

    @property
    def noun(self) -> str:
        """What its pods are, for messages: a worker of a TrainingJob."""
        ...

    def caller(self, pod: Pod) -> ReportingPod | None:
        """None for a pod of another kind, whatever labels it has."""
        ...

    async def reply(self, caller: ReportingPod, batch: WorkerReport) -> ReportReply:
        """The answer to the sidecar, without its backup and how its training ended.

        Raises `NotInCacheYet`, and a `ClusterError` where the cluster has to be asked.
        """
        ...

    def receive(self, caller: ReportingPod, batch: WorkerReport) -> None:
        """A report of an attempt that is not over. May raise `ReportsPending`."""
        ...

    def missed(self, job: Key | None) -> None:
        """A report could not be taken, and not because of the caller: of this job, or of any job."""
        ...


class ReportHandler:
    """Handles report requests. `leading`: a standby refuses reports, since the leader would never get them."""

    def __init__(
        self,
        *,
        kinds: Sequence[ReportingKind],
        pods: Store[Pod],
        reviews: TokenReviewCache,
        leading: Callable[[], bool],
        backups: BackupRequests,
        now: Now,
    ) -> None:
        self._kinds = kinds
        self._pods = pods
        self._reviews = reviews
        self._leading = leading
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
        except (NotInCacheYet, ReportsPending) as error:
            return refusal_response(503, str(error))
        except ClusterError as error:
            self._missed(request, is_anybodys=not isinstance(error, CAUSED_BY_A_REQUEST))
            log.warning("report not taken: the cluster can't be asked about it", reason=str(error))
            return refusal_response(503, "the cluster can't be asked about it at the moment: try again later")
        except Exception:
            # The request of an unknown client may itself cause the error.
            self._missed(request, is_anybodys=False)
            log.exception("report not taken")
            return refusal_response(500, "an error in holdfast: the operator's log says more")

    def _missed(self, request: web.Request, *, is_anybodys: bool) -> None:
        """Tell the kind of a pod whose token was reviewed before; of an unknown client, all kinds if that may be."""
        try:
            identity = self._reviews.last_identity(bearer_token(request))
            known = identify_pod(identity, self._pods, self._kinds) if identity is not None else None
        except (HttpRefusal, ReportNotAllowed, NotInCacheYet):
            known = None
        if known is not None:
            kind, caller = known
            kind.missed(caller.job)
        elif is_anybodys:
            for kind in self._kinds:
                kind.missed(None)

    async def _receive(self, request: web.Request) -> web.Response:
        if not self._leading():
            raise HttpRefusal(503, "this operator does not lead: look for the address of the one that does")
        identity, _ = await self._authenticator.identify(request)
        kind, caller = identify_pod(identity, self._pods, self._kinds)
        if not self._pod_limit.take(caller.uid, clock_s()):
            raise HttpRefusal(429, f"pod {caller.pod} reports too often: send more in one report")
        batch = reports.decode(await read_body(request, BODY_WITHIN_S))
        ensure_own_report(caller, batch)
        reply = await kind.reply(caller, batch)
        if reply.attempt_over:
            return json_response(reply, status=409)
        if batch.backup is not None:
            self._backups.record(caller.uid, batch.backup)
        if self._is_first(caller, batch):
            kind.receive(caller, batch)
            self._record_sequence(caller, batch)
        reply = structs.replace(reply, ended_well=training_succeeded(self._pods.get(caller.pod)))
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


def identify_pod(
    identity: Identity, pods: Store[Pod], kinds: Sequence[ReportingKind]
) -> tuple[ReportingKind, ReportingPod]:
    """What the pod is that the token is bound to."""
    if not identity.pod_name or not identity.pod_uid:
        raise ReportNotAllowed("the token is not bound to a pod: use the projected one of the pod itself")
    key = Key(identity.namespace, identity.pod_name)
    pod = pods.get(key)
    if pod is None:
        raise NotInCacheYet(f"pod {key} is not known here: try again in a moment")
    if pod.metadata.uid == identity.pod_uid:
        for kind in kinds:
            if (caller := kind.caller(pod)) is not None:
                return kind, caller
    raise ReportNotAllowed(f"pod {key} is not {' or '.join(kind.noun for kind in kinds)}")


def ensure_own_report(caller: ReportingPod, batch: WorkerReport) -> None:
    """The report must be about the caller itself."""
    reported = (Key(batch.namespace, batch.job), batch.attempt, batch.index)
    if reported != (caller.job, caller.attempt, caller.index):
        raise ReportNotAllowed(
            f"pod {caller.pod} is worker {caller.index} of attempt {caller.attempt} of {caller.job}, "
            "and may report nothing else"
        )


def training_succeeded(pod: Pod | None) -> bool:
    """Whether the training in the caller's pod ended with exit code 0; the sidecar itself can't know."""
    ends = [status.state.terminated for status in pod.status.container_statuses] if pod is not None else []
    return bool(ends) and all(end is not None and not end.exit_code and not end.signal for end in ends)


@asynccontextmanager
async def serve_reports(
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
