"""The client of this node's kubelet: it knows one request, and never leaves the kubelet's certificate unchecked."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from holdfast.cluster.errors import Misconfigured
from holdfast.cluster.kubernetes.credentials import CredentialSource
from holdfast.cluster.kubernetes.material import PemSource, RotatingFile
from holdfast.cluster.kubernetes.tls import make_context
from holdfast.errors import HoldfastError
from holdfast.node.answers import read_answer
from holdfast.node.faults import KubeletAnswer, is_passing, words

CONNECT_S = 10.0
# Beyond the timeout that the kubelet is given, for its own answer.
ANSWER_S = 5.0
LARGEST_ANSWER = 64 << 10


class KubeletUnavailable(HoldfastError):
    """The kubelet does not answer, or broke off in the middle; it may be back soon."""


class KubeletRefused(HoldfastError):
    """The kubelet's answer, which will be the same the next time."""

    def __init__(self, answer: KubeletAnswer) -> None:
        super().__init__(f"the kubelet answers {answer.status}")
        self.answer = answer


class KubeletUntrusted(HoldfastError):
    """Its certificate is signed neither by the cluster's authority, nor is it the file on this node."""


class _Answer(msgspec.Struct, frozen=True):
    items: tuple[str, ...] = ()


class KubeletTrust:
    """The cluster's authority, or the self-signed certificate that a kubelet without another writes on its node."""

    def __init__(self, authority: PemSource | None, own_certificate: Path) -> None:
        self._authority = RotatingFile(authority) if authority else None
        self._own_certificate = own_certificate

    def contexts(self, now_s: float) -> list[ssl.SSLContext]:
        """In the order in which they are tried. The system's own authorities sign no kubelets."""
        found = [make_context(self._authority.read(now_s))] if self._authority else []
        try:
            pinned = make_context(self._own_certificate.read_bytes())
        except (OSError, Misconfigured):
            return found
        # It is this very certificate, whatever name it bears.
        pinned.check_hostname = False
        return [*found, pinned]


class KubeletClient:
    """Used inside `async with`. `clock` is for files that are read again when they change."""

    def __init__(
        self, url: str, credentials: CredentialSource, trust: KubeletTrust, *, clock: Callable[[], float]
    ) -> None:
        self._url = url.rstrip("/")
        self._credentials = credentials
        self._trust = trust
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # Without a total: a large container may take minutes.
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            connector=aiohttp.TCPConnector(force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def checkpoint(self, namespace: str, pod: str, container: str, timeout_s: int) -> str:
        """Have a container saved, and return the path of its archive. The container runs on afterwards."""
        url = f"{self._url}/checkpoint/{namespace}/{pod}/{container}?timeout={timeout_s}"
        identity = await self._credentials.identity(self._clock())
        answer = await self._post(url, identity.authorization, timeout_s)
        if answer.status == 401:
            # The kubelet of this pod has replaced the token a moment ago.
            await self._credentials.renew(identity, self._clock())
            identity = await self._credentials.identity(self._clock())
            answer = await self._post(url, identity.authorization, timeout_s)
        if is_passing(answer):
            raise KubeletUnavailable(f"the kubelet answers {answer.status}: {words(answer.words)}")
        if answer.status != 200:
            raise KubeletRefused(answer)
        return _archive(answer)

    async def _post(self, url: str, authorization: str, timeout_s: int) -> KubeletAnswer:
        untrusted = "there is neither the cluster's CA nor the kubelet's own certificate"
        for context in self._trust.contexts(self._clock()):
            try:
                return await self._send(url, authorization, timeout_s, context)
            except aiohttp.ClientConnectorCertificateError as error:
                untrusted = str(error.certificate_error)
        raise KubeletUntrusted(
            f"the certificate of the kubelet at {self._url} is not trusted ({words(untrusted)}): let it be signed by "
            "the cluster's CA (serverTLSBootstrap: true), or mount the kubelet's own one and name it with "
            "--kubelet-certificate"
        )

    async def _send(self, url: str, authorization: str, timeout_s: int, context: ssl.SSLContext) -> KubeletAnswer:
        assert self._session is not None, "the kubelet is asked inside the block"
        headers = {"Authorization": authorization} if authorization else {}
        try:
            async with (
                asyncio.timeout(timeout_s + ANSWER_S),
                self._session.post(url, headers=headers, ssl=context, allow_redirects=False) as response,
            ):
                content = await read_answer(response, LARGEST_ANSWER)
                return KubeletAnswer(response.status, content.decode(errors="replace"))
        except aiohttp.ClientConnectorCertificateError:
            raise
        except TimeoutError:
            raise KubeletUnavailable("the kubelet is silent") from None
        except (aiohttp.ClientError, OSError) as error:
            raise KubeletUnavailable(f"the connection to the kubelet broke ({type(error).__name__})") from None


def _archive(answer: KubeletAnswer) -> str:
    try:
        (path,) = msgspec.json.decode(answer.words, type=_Answer).items
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise KubeletRefused(answer._replace(words="the answer names no archive")) from None
    return path
