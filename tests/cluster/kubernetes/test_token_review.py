"""What the API server's answer about a token means."""

import base64
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast.cluster.errors import Undecodable
from holdfast.cluster.kubernetes.subresources import parse_token_review, to_review
from holdfast.cluster.protocol import Identity

EXTRA = {"authentication.kubernetes.io/pod-name": ["p"], "authentication.kubernetes.io/pod-uid": ["u"]}
USER = {"username": "system:serviceaccount:ml:bert", "extra": EXTRA}
FOUND = Identity(
    username="system:serviceaccount:ml:bert", namespace="ml", service_account="bert", pod_name="p", pod_uid="u"
)


def answer(**status: Any) -> bytes:
    return msgspec.json.encode({"status": {"authenticated": True, "audiences": ["here"], "user": USER, **status}})


def jwt(claims: bytes) -> str:
    return f"head.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.signature"


def test_the_token_is_in_the_body_and_nowhere_else() -> None:
    ask = to_review("secret", "here")
    assert (ask.method, ask.path) == ("POST", "/apis/authentication.k8s.io/v1/tokenreviews")
    assert msgspec.json.decode(ask.body)["spec"] == {"token": "secret", "audiences": ["here"]}
    assert "secret" not in ask.description + ask.path + str(ask.query)


def test_a_bound_token_names_its_account_and_pod() -> None:
    assert parse_token_review("opaque", "here", answer(), "review a token") == FOUND


@pytest.mark.parametrize(
    "status",
    [
        {"authenticated": False},
        {"audiences": []},
        {"audiences": ["https://kubernetes.default.svc"]},
        {"authenticated": False, "error": "token is expired"},
    ],
)
def test_a_token_of_another_audience_has_no_identity(status: dict[str, Any]) -> None:
    assert parse_token_review("opaque", "here", answer(**status), "review a token") is None


@pytest.mark.parametrize("username", ["admin", "system:serviceaccount:ml", "system:node:gpu-3", ""])
def test_a_user_is_no_service_account(username: str) -> None:
    found = parse_token_review("opaque", "here", answer(user={"username": username}), "review a token")
    assert found == Identity(username=username)


@pytest.mark.parametrize(
    ("token", "expires"),
    [
        (jwt(b'{"exp": 1767225600}'), datetime(2026, 1, 1, tzinfo=UTC)),
        (jwt(b"{}"), None),
        (jwt(b'{"exp": "soon"}'), None),
        (jwt(b'{"exp": 1e300}'), None),
        (jwt(b"\xff"), None),
        ("a.%%%.c", None),
        ("a.é.c", None),
        ("opaque", None),
        ("..", None),
    ],
)
def test_a_token_says_itself_when_it_ends(token: str, expires: datetime | None) -> None:
    found = parse_token_review(token, "here", answer(), "review a token")
    assert found is not None
    assert found.expires_at == expires


def test_an_answer_that_is_none_is_named() -> None:
    with pytest.raises(Undecodable, match="review a token"):
        parse_token_review("opaque", "here", b"<html>", "review a token")
