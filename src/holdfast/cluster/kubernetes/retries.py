"""Retries of failed requests, and error messages for failed connections."""

import os
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random

import aiohttp
from msgspec import Struct
from yarl import URL

from holdfast.cluster.errors import Unreachable
from holdfast.cluster.kubernetes.kubeconfig import Config


class RetryLimits(Struct, frozen=True, kw_only=True):
    """Limits of retries, for a server that throttles and for a server that does not respond."""

    attempts: int = 10
    total_wait_s: float = 60.0
    connection_attempts: int = 4
    first_backoff_s: float = 0.1
    longest_backoff_s: float = 2.0


DEFAULT_RETRY_LIMITS = RetryLimits()


class FailedAttempt(Struct, frozen=True, kw_only=True):
    """The result of one failed attempt: the response of the server, or none (`status` 0)."""

    write: bool
    sent: bool
    final: bool = False
    status: int = 0
    retry_after_s: float | None = None


class RetrySchedule:
    """The waits between the attempts of one request; None ends the retries."""

    def __init__(self, patience: RetryLimits, rng: Random) -> None:
        self._patience = patience
        self._rng = rng
        self._attempts = 0
        self._waited_s = 0.0

    def next_wait_s(self, failure: FailedAttempt) -> float | None:
        self._attempts += 1
        wait_s = self._wait_s(failure)
        if wait_s is None or self._waited_s + wait_s > self._patience.total_wait_s:
            return None
        self._waited_s += wait_s
        return wait_s

    def _wait_s(self, failure: FailedAttempt) -> float | None:
        if is_throttled(failure):
            if self._attempts >= self._patience.attempts:
                return None
            least_s = failure.retry_after_s if failure.retry_after_s is not None else self._backoff_s()
            # Never earlier than the server requests, and with jitter, so that clients don't retry all at once.
            return least_s + self._rng.uniform(0, max(least_s, 1.0) * 0.25)
        if failure.status or failure.final or (failure.write and failure.sent):
            return None
        if self._attempts >= self._patience.connection_attempts:
            return None
        return self._backoff_s() * self._rng.uniform(0.5, 1.0)

    def _backoff_s(self) -> float:
        doubled_s = self._patience.first_backoff_s * 2.0 ** (self._attempts - 1)
        return min(doubled_s, self._patience.longest_backoff_s)


def is_throttled(failure: FailedAttempt) -> bool:
    """With 429, or 503 and Retry-After, the server has done nothing; with another 5xx, only a read is safe to retry."""
    if failure.status == 429:
        return True
    if failure.retry_after_s is None:
        return False
    return failure.status == 503 or (failure.status >= 500 and not failure.write)


def parse_retry_after(value: str | None, now: Callable[[], datetime]) -> float | None:
    """Seconds to wait, from a number or an HTTP date; an invalid value is ignored."""
    if not value:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - now()).total_seconds())


# Results of OpenSSL's certificate verification (X509_V_ERR_…) for which the error message has advice.
_EXPIRED = 10
_WRONG_NAME = (62, 64)


def connection_error(tried: str, error: BaseException, config: Config) -> Unreachable:
    return Unreachable(f"{tried}: {_explanation(error, config)}")


def is_untrusted(error: BaseException) -> bool:
    return isinstance(error, aiohttp.ClientConnectorCertificateError)


def is_final(error: BaseException) -> bool:
    """Whether an immediate retry can't help, or the wait was long enough already."""
    return is_untrusted(error) or isinstance(error, TimeoutError)


def _explanation(error: BaseException, config: Config) -> str:
    url, source = config.server.url, config.source
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return _untrusted(error.certificate_error, config)
        case aiohttp.ClientHttpProxyError():
            return f"the proxy {_proxy(config)} answered {error.status} when asked for {url}"
        case aiohttp.ClientProxyConnectionError():
            return f"cannot reach the proxy {_proxy(config)} ({_reason(error.os_error)}): is it running and set right?"
        case aiohttp.ClientConnectorDNSError():
            return f"cannot find the host of {url}: is the server in {source} written right, and does DNS work?"
        case aiohttp.ClientConnectorSSLError():
            return f"no TLS with {url} ({_reason(error.os_error)}): is https right for the server in {source}?"
        case aiohttp.ClientConnectorError():
            return (
                f"cannot reach {url} ({_reason(error.os_error)}): is the API server running, and is it the one that "
                f"{source} means?"
            )
        case aiohttp.ConnectionTimeoutError():
            return f"cannot reach {url}: no connection in time: is a firewall in between, or a VPN not up?"
        case TimeoutError():
            return f"{url} did not answer in time"
        case aiohttp.ServerDisconnectedError():
            return f"{url} closed the connection without an answer"
        case aiohttp.ClientPayloadError():
            return f"{url} broke off in the middle of its answer"
        case OSError():
            return f"the connection to {url} was lost ({_reason(error)})"
    return f"the connection to {url} was lost ({type(error).__name__})"


def _untrusted(error: Exception, config: Config) -> str:
    url, source = config.server.url, config.source
    code = getattr(error, "verify_code", 0)
    if code in _WRONG_NAME:
        return (
            f"the certificate of {url} is made out to another name: use a name that it covers as server, or set "
            f"tls-server-name, in {source}"
        )
    if code == _EXPIRED:
        return f"the certificate of {url} has expired: renew it on the server, and check this machine's clock"
    reason = getattr(error, "verify_message", "") or type(error).__name__
    return (
        f"the certificate of {url} is not trusted ({reason}): set certificate-authority in {source} to the authority "
        "that signed it"
    )


def _proxy(config: Config) -> str:
    """The address of the proxy without its password."""
    return str(URL(config.server.proxy).with_user(None))


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "handshake failed").replace("_", " ").lower()
    if error.errno and (error.strerror or "").startswith("Connect call failed"):
        return os.strerror(error.errno)  # the message of asyncio contains the address instead of the reason
    return error.strerror or type(error).__name__
