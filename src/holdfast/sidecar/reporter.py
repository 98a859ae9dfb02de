"""Sends reports to the operator: every few seconds, at once when an epoch ends, and half as often as a heartbeat.

An unreachable operator is never a reason to stop anything: it receives what it missed when it is back.
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

from holdfast.api import credentials, reports
from holdfast.api.backup_runs import BackupProgress
from holdfast.api.credentials import CredentialRefused, CredentialRequest, RegistryCredential
from holdfast.api.reports import PATH, Endpoint, ReportReply, WorkerReport
from holdfast.errors import HoldfastError
from holdfast.sidecar.outbox import ReportOutbox

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


# The client of the operator's report endpoint. The endpoint file and the token file may change at any time.

WITHIN_S = 10.0
LARGEST_ANSWER = 16 << 10
# HTTP statuses that concern the batch itself: a retry would not help.
NEVER = frozenset((400, 413))
# HTTP statuses with which a credential is refused for good.
REFUSED = frozenset((400, 401, 403, 404, 409, 413))


class ReportNotDelivered(HoldfastError):
    """The operator did not accept the report; a retry may succeed."""


class ReportRejected(HoldfastError):
    """The operator will never accept this report."""


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
        return _read(*await self._post(PATH, msgspec.json.encode(batch), LARGEST_ANSWER))

    async def credential(self, wanted: CredentialRequest) -> RegistryCredential:
        """The credential for one run of a backup. Raises ReportNotDelivered where a retry may succeed."""
        status, body = await self._post(credentials.PATH, msgspec.json.encode(wanted), credentials.LARGEST_ANSWER)
        if status == 200:
            return credentials.decode_credential(body)
        if status in REFUSED:
            raise CredentialRefused(f"the operator gives no credential (HTTP {status}): {_error_text(body)}")
        raise ReportNotDelivered(f"the operator did not give the credential (HTTP {status}): {_error_text(body)}")

    async def _post(self, path: str, body: bytes, largest_answer: int) -> tuple[int, bytes]:
        assert self._session is not None, "the operator is asked inside the block"
        endpoint, tls = self._endpoint_and_tls()
        headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"}
        try:
            async with self._session.post(
                f"{endpoint.url}{path}", data=body, headers=headers, ssl=tls, allow_redirects=False
            ) as response:
                return response.status, await _read_limited(response, largest_answer)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ReportNotDelivered(
                f"the operator at {endpoint.url} does not answer: {type(error).__name__}"
            ) from None

    def _endpoint_and_tls(self) -> tuple[Endpoint, ssl.SSLContext]:
        """Read for each report: another operator may become leader, with its own address and certificate."""
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
        """Read for each report: the kubelet replaces the token long before it expires."""
        try:
            token = self._token_file.read_text().strip()
        except (OSError, ValueError) as error:
            raise ReportNotDelivered(f"can't read the token {self._token_file}: {type(error).__name__}") from None
        if not token.isascii() or not token.isprintable() or not token:
            raise ReportNotDelivered(f"{self._token_file} holds no token")
        return token


async def _read_limited(response: aiohttp.ClientResponse, largest: int) -> bytes:
    """The body up to a size; one that is longer can't be read anyway."""
    content = bytearray()
    async for chunk in response.content.iter_chunked(LARGEST_ANSWER):
        content += chunk
        if len(content) > largest:
            break
    return bytes(content[:largest])


def _pinned_tls_context(endpoint: Endpoint) -> ssl.SSLContext:
    """Trusts the certificate of the endpoint file alone, not those that the system trusts."""
    if not endpoint.url.startswith("https://"):
        raise ReportNotDelivered(f"the operator's address {endpoint.url[:100]!a} is not https: no token is sent there")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=endpoint.authority)
    return context


def _read(status: int, body: bytes) -> ReportReply:
    if status in (200, 409):
        try:
            return msgspec.json.decode(body, type=ReportReply)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ReportNotDelivered(f"the operator's answer (HTTP {status}) can't be read") from None
    if status in NEVER:
        raise ReportRejected(f"the operator refuses the report (HTTP {status}): {_error_text(body)}")
    raise ReportNotDelivered(f"the operator did not take the report (HTTP {status}): {_error_text(body)}")


def _error_text(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body, type=dict[str, str])["error"])[:300]
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError):
        return "no reason was given"


# The operator accepts about one report per second from each pod.
GAP_S = 1.0


class Reporter:
    """`wall` is the wall clock, in seconds since 1970; `saves_on_notice` returns whether the training saves on notice.

    `gpu_percent` is the utilization of the worker's GPUs, and `backup` how far a wanted backup is: every report carries
    them, but they never trigger a report.
    """

    def __init__(
        self,
        outbox: ReportOutbox,
        operator: OperatorClient,
        on_reply: Callable[[ReportReply], None],
        *,
        every_s: float,
        wall: Callable[[], float],
        saves_on_notice: Callable[[], bool] = lambda: False,
        gpu_percent: Callable[[], float | None] = lambda: None,
        backup: Callable[[], BackupProgress | None] = lambda: None,
    ) -> None:
        self._outbox = outbox
        self._operator = operator
        self._on_reply = on_reply
        self._every_s = every_s
        self._wall = wall
        self._saves_on_notice = saves_on_notice
        self._gpu_percent = gpu_percent
        self._backup = backup
        self._urgent = asyncio.Event()
        self._send_lock = asyncio.Lock()
        self._last_error = ""

    def send_now(self) -> None:
        self._urgent.set()

    async def run(self) -> None:
        while True:
            self._urgent.clear()
            is_delivered = await self.send()
            await asyncio.sleep(GAP_S)
            if is_delivered and not self._outbox.is_empty:
                continue
            is_urgent = await self._is_urgent_within(max(0.0, self._every_s - GAP_S))
            if not is_urgent and is_delivered and self._outbox.is_empty:
                # With nothing new every second interval is enough: the operator misses a worker only after three.
                await self._is_urgent_within(self._every_s)

    async def _is_urgent_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._urgent.wait()
        except TimeoutError:
            return False

    async def send(self) -> bool:
        """Whether the operator has received a batch."""
        async with self._send_lock:
            loop = asyncio.get_running_loop()
            try:
                batch = self._outbox.batch(loop.time(), self._wall())
                reply = await self._operator.report(
                    structs.replace(
                        batch,
                        saves_on_notice=self._saves_on_notice(),
                        gpu_utilization_percent=self._gpu_percent(),
                        backup=self._backup(),
                    )
                )
            except ReportNotDelivered as error:
                self._log_change(str(error))
                return False
            except ReportRejected as error:
                self._outbox.drop_rejected()
                self._log_change(str(error))
                return False
            self._log_change("")
            self._outbox.acknowledged(reply, loop.time())
            self._on_reply(reply)
            return True

    def _log_change(self, error: str) -> None:
        """Logs changes only: an operator that is away for a day costs two log lines."""
        if error and error != self._last_error:
            log.warning("the operator was not told", reason=error)
        elif self._last_error and not error:
            log.info("the operator hears us again")
        self._last_error = error
