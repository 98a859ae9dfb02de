"""HTTP to one API server: one pool, credentials that are renewed, retries that never repeat a write by accident."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from random import Random
from typing import TypeAlias

import aiohttp
from msgspec import Struct
from yarl import URL

from holdfast.cluster.errors import ClusterError, Undecodable, Unreachable
from holdfast.cluster.kubernetes.answers import error_from_status
from holdfast.cluster.kubernetes.asks import ApiRequest
from holdfast.cluster.kubernetes.attached import HEARTBEAT_S, PROTOCOLS, ExecStream, refused
from holdfast.cluster.kubernetes.config import Config
from holdfast.cluster.kubernetes.credentials import Credentials, Identity, StaticCredentials
from holdfast.cluster.kubernetes.lines import LineBuffer, LineTooLong
from holdfast.cluster.kubernetes.outages import connection_error, is_final, is_untrusted
from holdfast.cluster.kubernetes.plugin import ExecPluginCredentials
from holdfast.cluster.kubernetes.pool import Gate, SendTracker, abort_response, current_send, open_pool
from holdfast.cluster.kubernetes.retries import (
    DEFAULT_PATIENCE,
    FailedAttempt,
    RetryLimits,
    RetrySchedule,
    parse_retry_after,
)
from holdfast.cluster.kubernetes.tls import Tls

# verb, resource, HTTP status (0: no answer), seconds until the answer began
Observe: TypeAlias = Callable[[str, str, int, float], None]


class Timeouts(Struct, frozen=True, kw_only=True):
    connect_s: float = 10.0
    # The API server itself gives up on an ordinary request after 60 s.
    request_s: float = 65.0
    # A watch hears a bookmark about once a minute; silence beyond that is a connection that died unnoticed.
    idle_timeout_s: float = 90.0


DEFAULT_TIMEOUTS = Timeouts()


class Transport:
    """Sends what is asked until the server has answered or patience is used up; raises a `ClusterError`."""

    def __init__(
        self,
        config: Config,
        *,
        rng: Random,
        now: Callable[[], datetime],
        observe: Observe | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        patience: RetryLimits = DEFAULT_PATIENCE,
        concurrency: int = 100,
    ) -> None:
        self.rng = rng
        self.source = config.source
        self._config = config
        self._now = now
        self._observe = observe
        self._timeouts = timeouts
        self._patience = patience
        self._slots = asyncio.Semaphore(concurrency)
        self._credentials = credentials(config, now)
        self._tls = Tls(config.server)
        self._pool = open_pool()

    async def send(self, ask: ApiRequest, gate: Gate | None = None) -> bytes:
        """The body of the answer."""
        timeout = aiohttp.ClientTimeout(total=self._timeouts.request_s, sock_connect=self._timeouts.connect_s)
        response = await self._open(ask, timeout, gate)
        async with response:
            try:
                return await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise connection_error(ask.description, error, self._config) from None

    @asynccontextmanager
    async def stream(self, ask: ApiRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an answer that goes on, until the server ends it."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._timeouts.connect_s, sock_read=self._timeouts.idle_timeout_s
        )
        response = await self._open(ask, timeout, None)
        try:
            async with aclosing(self._lines(ask, response)) as lines:
                yield lines
        finally:
            abort_response(response)

    async def chunks(self, ask: ApiRequest) -> AsyncGenerator[bytes, None]:
        """An answer that goes on, as it comes; unlike a watch it may be silent for as long as it likes."""
        response = await self._open(ask, aiohttp.ClientTimeout(total=None, sock_connect=self._timeouts.connect_s), None)
        try:
            while chunk := await self._chunk(ask, response):
                yield chunk
        finally:
            abort_response(response)

    @asynccontextmanager
    async def attach(self, ask: ApiRequest) -> AsyncIterator[ExecStream]:
        """A conversation instead of an answer; it is not tried again."""
        server, identity = self._config.server, await self._credentials.identity(_clock_s())
        context = self._tls.context(identity.certificate, _clock_s()) if server.url.startswith("https") else True
        token = current_send.set(SendTracker(write=ask.write, gate=None))
        try:
            socket = await self._pool.ws_connect(
                self._url(ask),
                protocols=PROTOCOLS,
                headers=self._headers(ask, identity, streamed=False),
                max_msg_size=0,
                heartbeat=HEARTBEAT_S,
                ssl=context,
                server_hostname=server.name or None,
                proxy=server.proxy or None,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise error_from_status(
                ask.description, code=error.status, body=refused(error.status), source=self._config.source
            ) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise connection_error(ask.description, error, self._config) from None
        finally:
            current_send.reset(token)
        async with socket:
            yield ExecStream(socket, ask.description)

    async def close(self) -> None:
        await self._pool.close()

    async def _lines(self, ask: ApiRequest, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
        lines = LineBuffer()
        while chunk := await self._chunk(ask, response):
            try:
                for line in lines.feed(chunk):
                    yield line
            except LineTooLong as error:
                raise Undecodable(f"{ask.description}: {error}: is {self._config.server.url} an API server?") from None
        if lines.has_partial_line:
            raise Unreachable(f"{ask.description}: {self._config.server.url} broke off in the middle of a line")

    async def _chunk(self, ask: ApiRequest, response: aiohttp.ClientResponse) -> bytes:
        try:
            return await response.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise connection_error(ask.description, error, self._config) from None

    async def _open(self, ask: ApiRequest, timeout: aiohttp.ClientTimeout, gate: Gate | None) -> aiohttp.ClientResponse:
        """The first good answer, with its body still to be read."""
        schedule = RetrySchedule(self._patience, self.rng)
        renewed = False
        while True:
            identity = await self._credentials.identity(_clock_s())
            departure = SendTracker(write=ask.write, gate=gate)
            try:
                async with self._slots:
                    response = await self._attempt(ask, identity, departure, timeout)
                if response.status < 300:
                    return response
                error, failure = await self._refused(ask, response)
            except (aiohttp.ClientError, TimeoutError, OSError) as lost:
                error, failure = self._connection_lost(ask, lost, departure)
            if failure.status == 401 and not renewed:
                renewed = True
                await self._credentials.renew(identity, _clock_s())
                continue
            wait_s = schedule.next_wait_s(failure)
            if wait_s is None:
                raise error
            await asyncio.sleep(wait_s)

    async def _attempt(
        self, ask: ApiRequest, identity: Identity, departure: SendTracker, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        server = self._config.server
        started_s, status = _clock_s(), 0
        context = self._tls.context(identity.certificate, started_s) if server.url.startswith("https") else True
        token = current_send.set(departure)
        try:
            response = await self._pool.request(
                ask.method,
                self._url(ask),
                headers=self._headers(ask, identity, streamed=timeout.total is None),
                data=ask.body or None,
                allow_redirects=False,
                timeout=timeout,
                ssl=context,
                server_hostname=server.name or None,
                proxy=server.proxy or None,
            )
            status = response.status
            return response
        finally:
            current_send.reset(token)
            if self._observe:
                self._observe(ask.verb, ask.resource, status, _clock_s() - started_s)

    def _url(self, ask: ApiRequest) -> URL:
        return URL(self._config.server.url + ask.path, encoded=True).with_query(ask.query)

    def _headers(self, ask: ApiRequest, identity: Identity, *, streamed: bool) -> list[tuple[str, str]]:
        headers = [("Accept", ask.accept), *self._config.user.impersonation]
        if ask.body:
            headers.append(("Content-Type", ask.content_type))
        if streamed:
            # A watch is many small lines: compressing each costs both sides more than it saves.
            headers.append(("Accept-Encoding", "identity"))
        if identity.authorization:
            headers.append(("Authorization", identity.authorization))
        return headers

    async def _refused(self, ask: ApiRequest, response: aiohttp.ClientResponse) -> tuple[ClusterError, FailedAttempt]:
        async with response:
            body = await response.read()
        wait_s = parse_retry_after(response.headers.get("Retry-After"), self._now)
        error = error_from_status(
            ask.description, code=response.status, body=body, source=self._config.source, retry_after_s=wait_s
        )
        return error, FailedAttempt(write=ask.write, sent=True, status=response.status, retry_after_s=wait_s)

    def _connection_lost(
        self, ask: ApiRequest, lost: BaseException, departure: SendTracker
    ) -> tuple[ClusterError, FailedAttempt]:
        if is_untrusted(lost):
            self._tls.renew(_clock_s())  # perhaps the authority has been replaced; the next request will see it
        error = connection_error(ask.description, lost, self._config)
        return error, FailedAttempt(write=ask.write, sent=departure.sent, final=is_final(lost))


def credentials(config: Config, now: Callable[[], datetime]) -> Credentials:
    """A token or password that is written down comes before a plugin, as with kubectl."""
    user = config.user
    if user.plugin and not (user.token or user.username):
        return ExecPluginCredentials(user.plugin, config.server, now=now)
    return StaticCredentials(user)


def _clock_s() -> float:
    return asyncio.get_running_loop().time()
