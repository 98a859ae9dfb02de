"""Credentials of requests: an Authorization header, a client certificate, or both."""

import asyncio
import base64
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta, Struct

from holdfast.cluster.errors import Misconfigured, Unauthorized
from holdfast.cluster.kubernetes.kubeconfig import ExecPlugin, Server, User
from holdfast.cluster.kubernetes.material import RedactedStruct, RotatingFile


class Certificate(RedactedStruct, frozen=True, kw_only=True):
    """A client certificate with its key, both in PEM."""

    chain: bytes
    key: bytes


class RequestIdentity(RedactedStruct, frozen=True, kw_only=True):
    """The credentials of one request."""

    authorization: str = ""
    certificate: Certificate | None = None


class CredentialSource(Protocol):
    """A source of identities: tokens and certificates expire and are replaced."""

    async def identity(self, now_s: float) -> RequestIdentity: ...

    async def renew(self, refused: RequestIdentity, now_s: float) -> None:
        """The server rejected `refused`: check for a newer identity now."""
        ...


class StaticCredentials:
    """Tokens, passwords and certificates of a kubeconfig or service account, inline or in files."""

    def __init__(self, user: User) -> None:
        self._token = RotatingFile(user.token) if user.token else None
        self._basic = basic(user.username, user.password) if user.username else ""
        self._certificate = RotatingFile(user.certificate) if user.certificate else None
        self._key = RotatingFile(user.key) if user.key else None

    async def identity(self, now_s: float) -> RequestIdentity:
        return self._read(now_s, recheck=False)

    async def renew(self, refused: RequestIdentity, now_s: float) -> None:
        self._read(now_s, recheck=True)

    def _read(self, now_s: float, *, recheck: bool) -> RequestIdentity:
        authorization, certificate = self._basic, None
        if self._token:
            authorization = bearer(self._token.read(now_s, recheck=recheck).decode(errors="replace"))
        if self._certificate and self._key:
            certificate = Certificate(
                chain=self._certificate.read(now_s, recheck=recheck), key=self._key.read(now_s, recheck=recheck)
            )
        return RequestIdentity(authorization=authorization, certificate=certificate)


def bearer(token: str) -> str:
    """The header for a token; the error for an invalid token does not contain the token."""
    token = token.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Misconfigured("the token holds characters that no token has: it must be one line of printable ASCII")
    return f"Bearer {token}"


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


# Credentials from an exec plugin: the command runs again when its credentials expire or are rejected.

API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class ExecCredentialStatus(RedactedStruct, frozen=True, kw_only=True, rename="camel"):
    """The status of an ExecCredential: the credentials and their expiry."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: Annotated[datetime, Meta(tz=True)] | None = None


class ExecCredential(RedactedStruct, frozen=True, kw_only=True, rename="camel"):
    api_version: str
    status: ExecCredentialStatus = ExecCredentialStatus()


class ClusterInfo(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    """The cluster information for a plugin with provideClusterInfo."""

    server: str
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority_data: bytes = b""
    proxy_url: str = ""
    config: object = None


class ExecPluginCredentials:
    """Runs the plugin at most once at a time, however many requests wait for its credentials."""

    def __init__(
        self,
        spec: ExecPlugin,
        server: Server,
        *,
        now: Callable[[], datetime],
        environ: Mapping[str, str] = os.environ,
        timeout_s: float = 60.0,
    ) -> None:
        if spec.api_version not in API_VERSIONS:
            raise Misconfigured(
                f"the exec plugin {spec.command} speaks {spec.api_version!r}: use a version of it that speaks "
                f"{' or '.join(API_VERSIONS)}"
            )
        self._spec = spec
        self._server = server
        self._now = now
        self._environ = environ
        self._timeout_s = timeout_s
        self._running = asyncio.Lock()
        self._identity: RequestIdentity | None = None
        self._expires: datetime | None = None

    async def identity(self, now_s: float) -> RequestIdentity:
        async with self._running:
            if self._identity is None or (self._expires and self._now() >= self._expires):
                status = await self._run_plugin(now_s)
                self._identity, self._expires = _identity(status, self._spec.command), status.expiration_timestamp
            return self._identity

    async def renew(self, refused: RequestIdentity, now_s: float) -> None:
        # When many requests are rejected at once, one renewal serves all.
        if self._identity is refused:
            self._identity = None

    async def _run_plugin(self, now_s: float) -> ExecCredentialStatus:
        stdout = await self._run(self._exec_info(now_s))
        try:
            credential = msgspec.json.decode(stdout, type=ExecCredential)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            # A msgspec error names fields and types, never values.
            raise Unauthorized(f"the exec plugin {self._spec.command} did not print a credential: {error}") from None
        if credential.api_version != self._spec.api_version:
            raise Unauthorized(
                f"the exec plugin {self._spec.command} printed {credential.api_version!r}, and the kubeconfig says "
                f"{self._spec.api_version!r}: make them the same"
            )
        return credential.status

    async def _run(self, exec_info: bytes) -> bytes:
        command = self._spec.command
        process = await self._started(exec_info)
        try:
            async with asyncio.timeout(self._timeout_s):
                stdout, stderr = await process.communicate()
        except TimeoutError:
            await _kill(process)
            raise Unauthorized(f"the exec plugin {command} did not answer within {self._timeout_s:g} s") from None
        except asyncio.CancelledError:
            await _kill(process)
            raise
        if process.returncode != 0:
            raise Unauthorized(f"the exec plugin {command} failed ({process.returncode}): {_last_line(stderr)}")
        return stdout

    async def _started(self, exec_info: bytes) -> asyncio.subprocess.Process:
        starting = asyncio.create_task(self._start(exec_info))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # On a cancel during the start, asyncio would kill only the command and wait for its children for ever.
            await _kill(await starting)
            raise

    async def _start(self, exec_info: bytes) -> asyncio.subprocess.Process:
        command = self._spec.command
        environment = {
            **self._environ,
            **{variable.name: variable.value for variable in self._spec.env},
            "KUBERNETES_EXEC_INFO": exec_info.decode(),
        }
        try:
            return await asyncio.create_subprocess_exec(
                command,
                *self._spec.args,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            hint = " ".join(self._spec.install_hint.split()) or "install it, or correct the command in the kubeconfig"
            raise Misconfigured(f"cannot run the exec plugin {command} ({error.strerror}): {hint}") from None

    def _exec_info(self, now_s: float) -> bytes:
        spec: dict[str, object] = {"interactive": False}
        if self._spec.provide_cluster_info:
            spec["cluster"] = self._cluster_info(now_s)
        return msgspec.json.encode({"apiVersion": self._spec.api_version, "kind": "ExecCredential", "spec": spec})

    def _cluster_info(self, now_s: float) -> ClusterInfo:
        server = self._server
        return ClusterInfo(
            server=server.url,
            tls_server_name=server.name,
            insecure_skip_tls_verify=server.insecure,
            certificate_authority_data=RotatingFile(server.authority).read(now_s) if server.authority else b"",
            proxy_url=server.proxy,
            config=server.exec_config,
        )


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the plugin and all its child processes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _identity(status: ExecCredentialStatus, command: str) -> RequestIdentity:
    chain, key = status.client_certificate_data, status.client_key_data
    if bool(chain) != bool(key) or not (status.token or chain):
        raise Unauthorized(f"the exec plugin {command} printed neither a token nor a certificate with its key")
    return RequestIdentity(
        authorization=bearer(status.token) if status.token else "",
        certificate=Certificate(chain=chain.encode(), key=key.encode()) if chain else None,
    )


def _last_line(stderr: bytes) -> str:
    """The last line of stderr, which mostly tells the user what to do."""
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it wrote nothing to stderr"
