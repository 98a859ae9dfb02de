"""Asks the operator for the registry credential of one run: an agent may read no Secret."""

import ssl
from pathlib import Path
from typing import Protocol

import aiohttp
import msgspec

from holdfast.api import reports
from holdfast.api.credentials import (
    ENDPOINT_CONFIG_MAP,
    LARGEST_ANSWER,
    PATH,
    CredentialRefused,
    CredentialRequest,
    InvalidCredentialMessage,
    RegistryCredential,
    decode_credential,
)
from holdfast.api.meta import Key
from holdfast.api.reports import Endpoint
from holdfast.cluster.errors import ClusterError, NotFound
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CONFIG_MAPS
from holdfast.errors import HoldfastError
from holdfast.node.answers import read_answer

WITHIN_S = 15.0
# What another try would not change.
FINAL = frozenset((400, 403, 404, 409, 413))


class CredentialUnavailable(HoldfastError):
    """The operator can't be asked now, or can't answer now."""


class RunCredentials(Protocol):
    async def credential(self, request: CredentialRequest) -> RegistryCredential: ...


class CredentialClient:
    """namespace: of the operator's ConfigMap. token_file: a projected token with the audience of agents."""

    def __init__(self, cluster: Cluster, *, namespace: str, token_file: Path) -> None:
        self._cluster = cluster
        self._key = Key(namespace, ENDPOINT_CONFIG_MAP)
        self._token_file = token_file

    async def credential(self, request: CredentialRequest) -> RegistryCredential:
        endpoint = await self._endpoint()
        headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"}
        try:
            context = _pinned(endpoint)
            timeout = aiohttp.ClientTimeout(total=WITHIN_S)
            async with (
                aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.post(
                    f"{endpoint.url}{PATH}",
                    data=msgspec.json.encode(request),
                    headers=headers,
                    ssl=context,
                    allow_redirects=False,
                ) as response,
            ):
                return _read(response.status, await read_answer(response, LARGEST_ANSWER))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise CredentialUnavailable(
                f"the operator at {endpoint.url} does not answer: {type(error).__name__}"
            ) from None

    async def _endpoint(self) -> Endpoint:
        """Read for each run: another operator may lead meanwhile, with its own address and certificate."""
        try:
            found = await self._cluster.get(CONFIG_MAPS, self._key)
            return reports.decode_endpoint(found.data.get(reports.FILE, "").encode())
        except NotFound:
            raise CredentialUnavailable(
                f"there is no ConfigMap {self._key}: the operator writes it when it leads; is the agent's option "
                "--operator-namespace its namespace?"
            ) from None
        except ClusterError as error:
            raise CredentialUnavailable(f"can't read where the operator is: {error}") from None
        except reports.InvalidEndpointFile as error:
            raise CredentialUnavailable(f"the ConfigMap {self._key} can't be read: {error}") from None

    def _token(self) -> str:
        """Read for each request: the kubelet replaces the token long before it expires."""
        try:
            token = self._token_file.read_text().strip()
        except (OSError, ValueError) as error:
            raise CredentialUnavailable(f"can't read the token {self._token_file}: {type(error).__name__}") from None
        if not token or not token.isascii() or not token.isprintable():
            raise CredentialUnavailable(f"{self._token_file} holds no token")
        return token


def _pinned(endpoint: Endpoint) -> ssl.SSLContext:
    """Trusts the certificate that the operator published, and no other."""
    if not endpoint.url.startswith("https://"):
        raise CredentialUnavailable(f"the operator's address {endpoint.url[:100]!a} is not https: no token goes there")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=endpoint.authority)
    return context


def _read(status: int, body: bytes) -> RegistryCredential:
    if status == 200:
        try:
            return decode_credential(body)
        except InvalidCredentialMessage as error:
            raise CredentialUnavailable(str(error)) from None
    said = f"the operator answers {status}: {_error_text(body)}"
    raise (CredentialRefused if status in FINAL else CredentialUnavailable)(said)


def _error_text(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body, type=dict[str, str])["error"])[:1000]
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError):
        return "no reason was given"
