"""Tells the operator what is new: every few seconds, at once when an epoch has ended, and half as often that we live.

An operator that can't be reached is never a reason to stop anything: what it missed is told when it is back.
"""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import aiohttp
import msgspec
import structlog
from msgspec import structs

from holdfast.api import reports
from holdfast.api.reports import PATH, Endpoint, ReportReply, WorkerReport
from holdfast.errors import HoldfastError
from holdfast.sidecar.outbox import ReportOutbox

# The way to the operator: where it is, who we are, and what it answers. Both files may change at any time.

WITHIN_S = 10.0
LARGEST_ANSWER = 16 << 10
# Statuses that say something about the batch, and not about this moment.
NEVER = frozenset((400, 413))


class ReportNotDelivered(HoldfastError):
    """The operator did not take the report; it may do so later."""


class ReportRejected(HoldfastError):
    """The operator will never take this report."""


class OperatorClient:
    def __init__(self, reports_file: Path, token_file: Path) -> None:
        self._reports_file = reports_file
        self._token_file = token_file
        self._session: aiohttp.ClientSession | None = None
        self._endpoint: Endpoint | None = None
        self._tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> "OperatorClient":
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WITHIN_S))
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def report(self, batch: WorkerReport) -> ReportReply:
        assert self._session is not None, "the operator is asked inside the block"
        place, tls = self._endpoint_and_tls()
        headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"}
        body = msgspec.json.encode(batch)
        try:
            async with self._session.post(
                f"{place.url}{PATH}", data=body, headers=headers, ssl=tls, allow_redirects=False
            ) as response:
                return _read(response.status, await response.content.read(LARGEST_ANSWER))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ReportNotDelivered(f"the operator at {place.url} does not answer: {type(error).__name__}") from None

    def _endpoint_and_tls(self) -> tuple[Endpoint, ssl.SSLContext]:
        """Read anew each time: another operator may lead, with an address and a certificate of its own."""
        try:
            found = reports.decode_endpoint(self._reports_file.read_bytes())
            if found != self._endpoint or self._tls is None:
                self._tls = _pinned_tls_context(found)
                self._endpoint = found
        except (reports.InvalidEndpointFile, ssl.SSLError, ValueError) as error:
            raise ReportNotDelivered(
                f"{self._reports_file} does not say where to report: {type(error).__name__}"
            ) from None
        except OSError as error:
            raise ReportNotDelivered(f"can't read where to report, {self._reports_file}: {error.strerror}") from None
        return found, self._tls

    def _token(self) -> str:
        """The kubelet replaces it long before it expires."""
        try:
            token = self._token_file.read_text().strip()
        except (OSError, ValueError) as error:
            raise ReportNotDelivered(f"can't read the token {self._token_file}: {type(error).__name__}") from None
        if not token.isascii() or not token.isprintable() or not token:
            raise ReportNotDelivered(f"{self._token_file} holds no token")
        return token


def _pinned_tls_context(place: Endpoint) -> ssl.SSLContext:
    """The one certificate and no other, not even those that the system trusts."""
    if not place.url.startswith("https://"):
        raise ReportNotDelivered(f"the operator's address {place.url[:100]!a} is not https: no token is sent there")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=place.authority)
    return context


def _read(status: int, body: bytes) -> ReportReply:
    if status in (200, 409):
        try:
            return msgspec.json.decode(body, type=ReportReply)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ReportNotDelivered(f"the operator's answer (HTTP {status}) can't be read") from None
    if status in NEVER:
        raise ReportRejected(f"the operator refuses the report (HTTP {status}): {_sentence(body)}")
    raise ReportNotDelivered(f"the operator did not take the report (HTTP {status}): {_sentence(body)}")


def _sentence(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body, type=dict[str, str])["error"])[:300]
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError):
        return "no reason was given"


# The operator takes about one report a second from each pod.
GAP_S = 1.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Reporter:
    """`wall` is the clock of the world, in seconds since 1970; `heeds` tells whether the training saves when asked.

    `gpu_percent` is the utilization of the worker's GPUs: every report carries it, and no report is sent for its sake.
    """

    def __init__(
        self,
        backlog: ReportOutbox,
        operator: OperatorClient,
        heard: Callable[[ReportReply], None],
        *,
        every_s: float,
        wall: Callable[[], float],
        heeds: Callable[[], bool] = lambda: False,
        gpu_percent: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._backlog = backlog
        self._operator = operator
        self._heard = heard
        self._every_s = every_s
        self._wall = wall
        self._heeds = heeds
        self._gpu_percent = gpu_percent
        self._urgent = asyncio.Event()
        self._turn = asyncio.Lock()
        self._trouble = ""

    def send_now(self) -> None:
        self._urgent.set()

    async def run(self) -> None:
        while True:
            self._urgent.clear()
            is_heard = await self.send()
            await asyncio.sleep(GAP_S)
            if is_heard and not self._backlog.is_empty:
                continue
            is_urgent = await self._is_urgent_within(max(0.0, self._every_s - GAP_S))
            if not is_urgent and is_heard and self._backlog.is_empty:
                # With nothing new every second turn is enough: the operator misses nobody before three have passed.
                await self._is_urgent_within(self._every_s)

    async def _is_urgent_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._urgent.wait()
        except TimeoutError:
            return False

    async def send(self) -> bool:
        """Whether the operator has heard a batch."""
        async with self._turn:
            clock = asyncio.get_running_loop()
            try:
                batch = self._backlog.batch(clock.time(), self._wall())
                answer = await self._operator.report(
                    structs.replace(batch, saves_on_notice=self._heeds(), gpu_utilization_percent=self._gpu_percent())
                )
            except ReportNotDelivered as error:
                self._say(str(error))
                return False
            except ReportRejected as error:
                self._backlog.drop_rejected()
                self._say(str(error))
                return False
            self._say("")
            self._backlog.acknowledged(answer, clock.time())
            self._heard(answer)
            return True

    def _say(self, trouble: str) -> None:
        """Once for each change: an operator that is away for a day is two lines."""
        if trouble and trouble != self._trouble:
            log.warning("the operator was not told", reason=trouble)
        elif self._trouble and not trouble:
            log.info("the operator hears us again")
        self._trouble = trouble
