"""Takes reports from the sidecars over TLS: each from a pod that proves who it is, about that pod's own job alone."""

import asyncio
import ipaddress
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import msgspec
import structlog
from aiohttp import web
from msgspec import structs

from holdfast.api.builtin import Node, Pod
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.certificate import own_identity
from holdfast.cluster.errors import ClusterError
from holdfast.cluster.protocol import Identity
from holdfast.reports import wire
from holdfast.reports.callers import (
    Caller,
    NotSeenYet,
    NotYours,
    check,
    find_caller,
    find_standing,
    has_ended_well,
    notice,
)
from holdfast.reports.endpoint import Endpoint
from holdfast.reports.gone import Gone
from holdfast.reports.hearing import Hearing
from holdfast.reports.inbox import InboxFull
from holdfast.reports.reviews import Reviews
from holdfast.reports.wire import Batch, Malformed
from holdfast.runtime.cache import Store
from holdfast.runtime.rate import Buckets
from holdfast.runtime.serve import served

Sink: TypeAlias = Callable[[Key, Batch], None]

# A sidecar reports every five seconds, and at once when an epoch ends.
BURST, REFILL_S = 20, 1.0
# What one address may ask to have reviewed: a node's workers, all at once.
STRANGERS_BURST, STRANGERS_REFILL_S = 100, 0.2
MEMORY = 20_000
BODY_WITHIN_S = 10.0
RETRY_AFTER_S = 5

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Refused(Exception):
    """An answer other than 200, and the sentence in it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Desk:
    """Where reports are handed in. `leading`: a standby takes none, since it would keep them from the leader.

    `pods` has the index `attempt_of`.
    """

    def __init__(
        self,
        *,
        pods: Store[Pod],
        nodes: Store[Node],
        jobs: Store[TrainingJob],
        reviews: Reviews,
        gone: Gone,
        hearing: Hearing,
        leading: Callable[[], bool],
        sink: Sink,
    ) -> None:
        self._pods = pods
        self._nodes = nodes
        self._jobs = jobs
        self._reviews = reviews
        self._gone = gone
        self._hearing = hearing
        self._leading = leading
        self._sink = sink
        self._strangers: Buckets[str] = Buckets(burst=STRANGERS_BURST, refill_s=STRANGERS_REFILL_S, memory=MEMORY)
        self._callers: Buckets[str] = Buckets(burst=BURST, refill_s=REFILL_S, memory=MEMORY)
        self._taken: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=wire.LARGEST_BODY)
        app.router.add_post(wire.PATH, self._answered)
        return app

    async def _answered(self, request: web.Request) -> web.Response:
        try:
            return await self._take(request)
        except Refused as refusal:
            log.debug("report refused", peer=request.remote, status=refusal.status, reason=str(refusal))
            return _refusal(refusal)
        except (NotYours, Malformed) as error:
            log.info("report refused", peer=request.remote, reason=str(error))
            return _refusal(Refused(403 if isinstance(error, NotYours) else 400, str(error)))
        except (NotSeenYet, InboxFull) as error:
            return _refusal(Refused(503, str(error)))
        except ClusterError as error:
            self._hearing.interrupted()
            log.warning("report not taken: the cluster can't be asked about it", reason=str(error))
            return _refusal(Refused(503, "the cluster can't be asked about it at the moment: try again later"))
        except Exception:
            self._hearing.interrupted()
            log.exception("report not taken")
            return _refusal(Refused(500, "an error in holdfast: the operator's log says more"))

    async def _take(self, request: web.Request) -> web.Response:
        if not self._leading():
            raise Refused(503, "this operator does not lead: look for the address of the one that does")
        caller = find_caller(await self._authenticated(request), self._pods)
        if not self._callers.take(caller.uid, _clock_s()):
            raise Refused(429, f"pod {caller.pod} reports too often: send more in one report")
        batch = wire.decode(await _body(request))
        check(caller, batch)
        answer = await find_standing(caller, batch.uid, self._jobs, self._gone.is_gone)
        if answer.over:
            return _json(answer, status=409)
        if self._is_first(caller, batch):
            self._sink(caller.job, batch)
            self._note(caller, batch)
        ended_well, save = has_ended_well(caller, self._pods), notice(caller, self._pods, self._nodes)
        return _json(structs.replace(answer, ended_well=ended_well, save=save))

    async def _authenticated(self, request: web.Request) -> Identity:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Refused(401, "no bearer token came with the report")
        token = token.strip()
        if not self._reviews.remembered(token) and not self._strangers.take(request.remote or "", _clock_s()):
            raise Refused(429, "too many tokens that are not known yet came from this address: try again later")
        identity = await self._reviews.identity(token)
        if identity is None:
            raise Refused(401, f"the token is not valid for the audience {wire.AUDIENCE}")
        return identity

    def _is_first(self, caller: Caller, batch: Batch) -> bool:
        """One that was sent again, because its answer was lost, is answered and not counted twice."""
        run, sequence = self._taken.get(caller.uid, ("", 0))
        return run != batch.run or batch.sequence > sequence

    def _note(self, caller: Caller, batch: Batch) -> None:
        self._taken[caller.uid] = (batch.run, batch.sequence)
        self._taken.move_to_end(caller.uid)
        if len(self._taken) > MEMORY:
            self._taken.popitem(last=False)


@asynccontextmanager
async def serve(desk: Desk, *, address: str, port: int, host: str | None = None) -> AsyncIterator[Endpoint]:
    """Serve inside the block. `address` is how pods reach this process; `host` is what to listen on, all by default."""
    identity = own_identity(address)
    serving = served(desk.application(), host=host, port=port, option="--reports-port", tls=identity.context)
    async with serving as chosen:
        shown = f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
        yield Endpoint(url=f"https://{shown}:{chosen}", authority=identity.authority.decode())


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise Refused(413, f"the report is larger than {wire.LARGEST_BODY} bytes: send it in parts") from None
    except TimeoutError:
        raise Refused(408, f"the report did not arrive within {BODY_WITHIN_S:g} s") from None


def _refusal(refusal: Refused) -> web.Response:
    headers = {"Retry-After": str(RETRY_AFTER_S)} if refusal.status in (429, 503) else {}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return _json({"error": str(refusal)}, status=refusal.status, headers=headers)


def _json(
    content: wire.Answer | dict[str, str], *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(content), status=status, headers=headers, content_type="application/json"
    )


def _clock_s() -> float:
    return asyncio.get_running_loop().time()
