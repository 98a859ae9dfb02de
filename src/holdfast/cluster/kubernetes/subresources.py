"""Exec in a container over a WebSocket, and TokenReviews."""

import base64
import binascii
from datetime import UTC, datetime

import aiohttp
import msgspec
from msgspec import Struct

from holdfast.cluster.errors import ServerError, Unreachable
from holdfast.cluster.kubernetes.requests import ApiRequest
from holdfast.cluster.kubernetes.responses import decode
from holdfast.cluster.protocol import Identity

# The subprotocols of Kubernetes (KEP-4006): the first byte of every message is the stream of the message.
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, ERROR = b"\0", b"\1", b"\2", b"\3"
HEARTBEAT_S = 30.0
STDERR_TAIL_BYTES = 2000


# aiohttp drops the body of a rejected WebSocket handshake, so the reason is stated here.
_REFUSED = {403: "it takes the right to create and get pods/exec", 404: "there is no such pod"}


class _Status(msgspec.Struct, frozen=True):
    """The result of the command, as metav1.Status."""

    status: str = ""
    message: str = ""


class ExecStream:
    """The streams of a command in a container; `tried` begins every error message."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, tried: str) -> None:
        self._socket = socket
        self._tried = tried
        self._stderr = b""

    async def write(self, content: bytes) -> None:
        try:
            await self._socket.send_bytes(STDIN + content)
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{self._tried}: the connection broke ({type(error).__name__})") from None

    async def read(self) -> bytes:
        """The next chunk of stdout; empty after the command has succeeded. Raises when the command fails."""
        while True:
            message = await self._socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise Unreachable(f"{self._tried}: the connection broke before the command had ended")
            channel, content = message.data[:1], bytes(message.data[1:])
            if channel == STDOUT and content:
                return content
            if channel == STDERR:
                self._stderr = (self._stderr + content)[-STDERR_TAIL_BYTES:]
            elif channel == ERROR:
                self._check_status(content)
                return b""

    def _check_status(self, content: bytes) -> None:
        try:
            status = msgspec.json.decode(content, type=_Status)
        except msgspec.MsgspecError:
            status = _Status(message="the server did not say how it ended")
        if status.status != "Success":
            stderr = " ".join(self._stderr.decode(errors="replace").split())
            raise ServerError(f"{self._tried}: {status.message}{f': {stderr}' if stderr else ''}")


def refused(code: int) -> bytes:
    """A Status body for a rejected handshake with that HTTP code."""
    message = _REFUSED.get(code, f"the server answered {code} instead of beginning a conversation")
    return msgspec.json.encode({"kind": "Status", "message": message})


# TokenReview: the API server returns the owner of a token.

_ACCOUNT = "system:serviceaccount:"
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_NODE_NAME = "authentication.kubernetes.io/node-name"


class _User(Struct, frozen=True):
    username: str = ""
    extra: dict[str, tuple[str, ...]] = {}


class _ReviewStatus(Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()
    audiences: tuple[str, ...] = ()


class _Review(Struct, frozen=True):
    status: _ReviewStatus = _ReviewStatus()


class _Claims(Struct, frozen=True):
    exp: float | None = None


def to_review(token: str, audience: str) -> ApiRequest:
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [audience]},
    }
    return ApiRequest(
        verb="create",
        resource="tokenreviews.authentication.k8s.io",
        description="review a token",
        method="POST",
        path="/apis/authentication.k8s.io/v1/tokenreviews",
        body=msgspec.json.encode(review),
    )


def parse_token_review(token: str, audience: str, response: bytes, tried: str) -> Identity | None:
    status = decode(_Review, response, tried).status
    # A server without support for audiences returns none: the token may be for any audience.
    if not status.authenticated or audience not in status.audiences:
        return None
    user = status.user
    namespace, _, account = user.username.removeprefix(_ACCOUNT).partition(":")
    is_account = user.username.startswith(_ACCOUNT) and bool(account)
    return Identity(
        username=user.username,
        namespace=namespace if is_account else "",
        service_account=account if is_account else "",
        pod_name=next(iter(user.extra.get(_POD_NAME, ())), ""),
        pod_uid=next(iter(user.extra.get(_POD_UID, ())), ""),
        node_name=next(iter(user.extra.get(_NODE_NAME, ())), ""),
        expires_at=_expiry(token),
    )


def _expiry(token: str) -> datetime | None:
    """The expiry in the token, which the server has verified; None if the token is no JWT."""
    _, _, rest = token.partition(".")
    claims = rest.partition(".")[0]
    try:
        text = base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))
        expiry = msgspec.json.decode(text, type=_Claims).exp
        return None if expiry is None else datetime.fromtimestamp(expiry, UTC)
    except (binascii.Error, UnicodeError, msgspec.MsgspecError, ValueError, OverflowError, OSError):
        return None
