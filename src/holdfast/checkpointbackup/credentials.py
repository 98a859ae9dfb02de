"""Answers whoever carries out a run with the credential of its registry: a node's agent, or the sidecar in the pod.

Neither may read Secrets. The operator reads the one that the backup names, and only while that very run is under way.
"""

from collections.abc import Callable, Collection, Mapping

import structlog
from aiohttp import web
from msgspec import Struct

from holdfast.api import credentials, reports
from holdfast.api.checkpointbackup import TERMINAL_PHASES, CheckpointBackup, CheckpointBackupStatus, RunMode
from holdfast.api.credentials import CredentialRequest, InvalidCredentialMessage, RegistryCredential
from holdfast.api.meta import Key
from holdfast.checkpoints.images.docker_config import credential_from_secret
from holdfast.checkpoints.images.errors import ImageError
from holdfast.checkpoints.images.reference import registry_address
from holdfast.cluster.errors import ClusterError, NotFound, Undecodable
from holdfast.cluster.protocol import Cluster, Identity
from holdfast.cluster.resources import CHECKPOINT_BACKUPS
from holdfast.httpserver import BadBody, read_body
from holdfast.providers.errors import CloudUnauthorized, ProviderError
from holdfast.runtime.authentication import (
    MEMORY,
    HttpRefusal,
    RequestAuthenticator,
    TokenReviewCache,
    clock_s,
    json_response,
    refusal_response,
)
from holdfast.runtime.http import RateLimiter
from holdfast.runtime.process import Now
from holdfast.runtime.registry_tokens import NoPushTokens, PushTokens
from holdfast.runtime.secrets import Problem, SecretReader, SecretUnavailable

# A run asks once, and again after a restart or a connection that broke.
BURST, REFILL_S = 20, 1.0
BODY_WITHIN_S = 10.0
REFUSALS: Mapping[Problem, int] = {
    "SecretMissing": 404,
    "SecretNotAllowed": 403,
    "SecretForbidden": 403,
    "SecretUnreadable": 409,
}

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class CredentialCaller(Struct, frozen=True):
    """Who asks, by its token: the agent of a node, or the sidecar in a pod."""

    identity: Identity
    mode: RunMode
    """Of the runs that it carries out."""

    def __str__(self) -> str:
        if self.mode == "container":
            return f"the agent of node {self.identity.node_name}"
        return f"pod {Key(self.identity.namespace, self.identity.pod_name)}"

    def carries_out(self, status: CheckpointBackupStatus) -> bool:
        if self.mode != status.mode:
            return False
        if self.mode == "container":
            return self.identity.node_name == status.node_name
        return self.identity.pod_uid == status.pod_uid


class CredentialHandler:
    """Handles requests for credentials. Every answer is judged by a fresh read: a cache may not know of a run's end.

    node_account: the user name of the agents' service account. operator_account: that of this operator, for messages,
    as namespace:name. plain_http: the registries that may be reached without TLS. tokens: where credentials come from
    that no Secret holds.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        now: Now,
        leading: Callable[[], bool],
        node_account: str,
        operator_account: str,
        plain_http: Collection[str] = (),
        tokens: PushTokens | None = None,
    ) -> None:
        self._cluster = cluster
        self._leading = leading
        self._node_account = node_account
        self._secrets = RegistrySecretReader(
            cluster, operator_account=operator_account, plain_http=plain_http, tokens=tokens
        )
        self._authenticator = RequestAuthenticator(
            TokenReviewCache(cluster, credentials.NODE_AUDIENCE, now=now),
            TokenReviewCache(cluster, reports.AUDIENCE, now=now),
        )
        self._caller_limit: RateLimiter[str] = RateLimiter(burst=BURST, refill_s=REFILL_S, memory=MEMORY)

    def routes(self) -> tuple[web.RouteDef, ...]:
        return (web.post(credentials.PATH, self._handle),)

    async def _handle(self, request: web.Request) -> web.Response:
        try:
            return json_response(await self._credential(request), headers={"Cache-Control": "no-store"})
        except (HttpRefusal, BadBody) as refusal:
            # An unknown client must not be able to fill the log.
            say = log.info if refusal.status in (403, 404, 409) else log.debug
            say("credential refused", peer=request.remote, status=refusal.status, reason=str(refusal))
            return refusal_response(refusal.status, str(refusal))
        except InvalidCredentialMessage as error:
            log.info("credential refused", peer=request.remote, reason=str(error))
            return refusal_response(400, str(error))
        except ClusterError as error:
            log.warning("no credential given: the cluster can't be asked about the run", reason=str(error))
            return refusal_response(503, "the cluster can't be asked about the run at the moment: try again later")
        except Exception:
            log.exception("no credential given")
            return refusal_response(500, "an error in holdfast: the operator's log says more")

    async def _credential(self, request: web.Request) -> RegistryCredential:
        if not self._leading():
            raise HttpRefusal(503, "this operator does not lead: look for the address of the one that does")
        identity, audience = await self._authenticator.identify(request)
        if not self._caller_limit.take(identity.pod_uid or identity.username, clock_s()):
            raise HttpRefusal(429, f"{identity.username} asks for credentials too often: try again later")
        body = await read_body(request, BODY_WITHIN_S)
        if len(body) > credentials.LARGEST_BODY:
            raise HttpRefusal(413, f"the body is larger than {credentials.LARGEST_BODY} bytes")
        wanted = credentials.decode_request(body)
        caller = self._agent_of(identity) if audience == credentials.NODE_AUDIENCE else _sidecar_of(identity, wanted)
        backup = await self._backup(wanted)
        _must_carry_out(caller, backup, wanted.run)
        found = await self._secrets.credential(backup)
        log.info("credential given", backup=str(backup.metadata.key), run=wanted.run, to=str(caller))
        return found

    def _agent_of(self, identity: Identity) -> CredentialCaller:
        if identity.username != self._node_account:
            raise HttpRefusal(
                403,
                f"{identity.username} is not the agents' account {self._node_account}: run agents with that one, or "
                "name theirs with the operator's option --node-service-account",
            )
        if not identity.node_name:
            raise HttpRefusal(403, "the token does not say which node it is for: use the projected one of the agent")
        return CredentialCaller(identity, "container")

    async def _backup(self, wanted: CredentialRequest) -> CheckpointBackup:
        key = Key(wanted.namespace, wanted.backup)
        try:
            backup = await self._cluster.get(CHECKPOINT_BACKUPS, key)
        except NotFound:
            raise HttpRefusal(404, f"there is no CheckpointBackup {key}") from None
        except Undecodable:
            raise HttpRefusal(409, f"CheckpointBackup {key} can't be read by this version of the operator") from None
        if backup.metadata.uid != wanted.uid:
            raise HttpRefusal(404, f"the CheckpointBackup {key} of that uid is gone, and another has its name")
        return backup


class RegistrySecretReader:
    """Reads the Secret that a backup names. Its refusals are sentences for whoever wrote the backup."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        operator_account: str,
        plain_http: Collection[str] = (),
        tokens: PushTokens | None = None,
    ) -> None:
        self._secrets = SecretReader(cluster, operator_account=operator_account)
        self._plain_http = plain_http
        self._tokens = tokens or NoPushTokens()

    async def credential(self, backup: CheckpointBackup) -> RegistryCredential:
        registry, namespace = backup.spec.registry, backup.metadata.namespace
        try:
            address = registry_address(registry.url, self._plain_http)
            if registry.secret_ref is None:
                return await self._tokens.push_token(backup) or RegistryCredential()
            secret = await self._secrets.read(registry.secret_ref, namespace, field="registry.secretRef")
            return credential_from_secret(secret.data, address.host, registry.repository)
        except SecretUnavailable as error:
            raise HttpRefusal(REFUSALS[error.reason], str(error)) from None
        except ImageError as error:
            raise HttpRefusal(409, str(error)) from None
        except ProviderError as error:
            # A key that is revoked stays so; any other fault of a cloud may pass.
            raise HttpRefusal(409 if isinstance(error, CloudUnauthorized) else 503, str(error)) from None


def _sidecar_of(identity: Identity, wanted: CredentialRequest) -> CredentialCaller:
    if not identity.pod_uid:
        raise HttpRefusal(403, "the token is not bound to a pod: use the projected one of the pod itself")
    if identity.namespace != wanted.namespace:
        raise HttpRefusal(403, f"a pod of {identity.namespace} has no part in backups of {wanted.namespace}")
    return CredentialCaller(identity, "application")


def _must_carry_out(caller: CredentialCaller, backup: CheckpointBackup, run: int) -> None:
    """Refuses all but whoever carries out this run, and even them when it is not under way."""
    status, key = backup.status or CheckpointBackupStatus(), backup.metadata.key
    if not caller.carries_out(status):
        who = "its pod's sidecar" if status.mode == "application" else f"the agent of node {status.node_name}"
        raise HttpRefusal(403, f"{caller} may not have the credential of CheckpointBackup {key}: it is for {who}")
    if backup.metadata.deletion_timestamp:
        raise HttpRefusal(409, f"CheckpointBackup {key} is being deleted: it has no run under way")
    if status.run != run:
        raise HttpRefusal(409, f"run {run} of CheckpointBackup {key} is not under way: its run is {status.run}")
    if status.phase in TERMINAL_PHASES:
        raise HttpRefusal(409, f"run {run} of CheckpointBackup {key} is over: {status.phase}")
