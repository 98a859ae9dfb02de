"""How a node's agent or a sidecar asks the operator for the registry credential of one run of a CheckpointBackup.

Neither may read Secrets: the operator reads the one of the run, and answers only whoever carries that run out.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from holdfast.errors import HoldfastError

PATH = "/v1/credential"
# The audience of an agent's token; a sidecar uses the one of its reports.
NODE_AUDIENCE = "holdfast.dev/node"
# Where the leader publishes its address and certificate for agents, in the namespace of its Lease.
ENDPOINT_CONFIG_MAP = "holdfast-node-endpoint"
# The namespaces, separated by commas, whose backups may use a Secret of another namespace; * for all.
ALLOW_NAMESPACES = "holdfast.dev/allow-namespaces"
LARGEST_BODY = 4096
# With the certificates of a private authority: a Secret may have a MiB of them.
LARGEST_ANSWER = 2 << 20


class CredentialRefused(HoldfastError):
    """The operator gives no credential for this run; its sentence says what would change that."""


class CredentialRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    namespace: Annotated[str, Meta(min_length=1, max_length=63)]
    backup: Annotated[str, Meta(min_length=1, max_length=253)]
    uid: Annotated[str, Meta(min_length=1, max_length=64)]
    run: Annotated[int, Meta(ge=1)]


class RegistryCredential(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A username and a password, or an identity token; none of them: anonymous. Only the username is ever printed."""

    username: str = ""
    password: str = ""
    identity_token: str = ""
    """An OAuth refresh token, as docker login stores it for some registries."""
    authority: str = ""
    """Certificates, in PEM, that the registry's one may be signed by, beside the usual ones."""

    @property
    def is_anonymous(self) -> bool:
        return not (self.username or self.password or self.identity_token)

    @property
    def who(self) -> str:
        """For messages: whose credential it is."""
        if self.identity_token:
            return "the identity token"
        return f"the credential of user {self.username!a}" if not self.is_anonymous else "no credential"

    def __repr__(self) -> str:
        return f"RegistryCredential({self.who})"

    __str__ = __repr__


class InvalidCredentialMessage(HoldfastError):
    """A request or an answer that can't be read. Its content is never part of the message."""


_request_decoder = msgspec.json.Decoder(CredentialRequest)
_credential_decoder = msgspec.json.Decoder(RegistryCredential)


def decode_request(body: bytes) -> CredentialRequest:
    try:
        return _request_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidCredentialMessage("the request for a credential can't be read") from None


def decode_credential(body: bytes) -> RegistryCredential:
    try:
        return _credential_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidCredentialMessage("the operator's answer is not a credential") from None
