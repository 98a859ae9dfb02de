"""Why there was no answer, for people: what happened, and where to look."""

import os
import ssl

import aiohttp
from yarl import URL

from holdfast.cluster.errors import Unreachable
from holdfast.cluster.kubernetes.config import Config

# Of OpenSSL's verification results (X509_V_ERR_…), those for which we can say what to do.
_EXPIRED = 10
_WRONG_NAME = (62, 64)


def connection_error(tried: str, error: BaseException, config: Config) -> Unreachable:
    return Unreachable(f"{tried}: {_explained(error, config)}")


def is_untrusted(error: BaseException) -> bool:
    return isinstance(error, aiohttp.ClientConnectorCertificateError)


def is_final(error: BaseException) -> bool:
    """Trying again at once can't help, or has been waited for long enough."""
    return is_untrusted(error) or isinstance(error, TimeoutError)


def _explained(error: BaseException, config: Config) -> str:
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
    """The proxy without the password that its address may hold."""
    return str(URL(config.server.proxy).with_user(None))


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "handshake failed").replace("_", " ").lower()
    if error.errno and (error.strerror or "").startswith("Connect call failed"):
        return os.strerror(error.errno)  # asyncio's own words hold the address instead of the reason
    return error.strerror or type(error).__name__
