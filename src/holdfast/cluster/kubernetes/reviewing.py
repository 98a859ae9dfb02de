"""TokenReview: asking the API server whose token that is."""

import base64
import binascii
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from holdfast.cluster.kubernetes.asks import ApiRequest
from holdfast.cluster.kubernetes.decoding import decode
from holdfast.cluster.protocol import Identity

_ACCOUNT = "system:serviceaccount:"
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"


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


def parse_token_review(token: str, audience: str, answer: bytes, tried: str) -> Identity | None:
    status = decode(_Review, answer, tried).status
    # A server that does not know audiences names none: the token may be meant for anybody.
    if not status.authenticated or audience not in status.audiences:
        return None
    user = status.user
    home, _, account = user.username.removeprefix(_ACCOUNT).partition(":")
    is_account = user.username.startswith(_ACCOUNT) and bool(account)
    return Identity(
        username=user.username,
        namespace=home if is_account else "",
        service_account=account if is_account else "",
        pod_name=next(iter(user.extra.get(_POD_NAME, ())), ""),
        pod_uid=next(iter(user.extra.get(_POD_UID, ())), ""),
        expires_at=_expiry(token),
    )


def _expiry(token: str) -> datetime | None:
    """As the token itself says, which the server has found to be genuine; None where it is no JWT."""
    _, _, rest = token.partition(".")
    claims = rest.partition(".")[0]
    try:
        text = base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))
        expiry = msgspec.json.decode(text, type=_Claims).exp
        return None if expiry is None else datetime.fromtimestamp(expiry, UTC)
    except (binascii.Error, UnicodeError, msgspec.MsgspecError, ValueError, OverflowError, OSError):
        return None
