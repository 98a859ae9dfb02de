"""The credential of a repository is found in a Secret as Kubernetes would find it, and is shown nowhere."""

import base64
import json

import pytest

from holdfast.api.credentials import RegistryCredential
from holdfast.checkpoints.images.docker_config import credential_from_secret
from holdfast.checkpoints.images.errors import InvalidRegistrySecret


def docker_config(**users: str) -> dict[str, bytes]:
    auths = {key: {"username": user, "password": "s3cret"} for key, user in users.items()}
    return {".dockerconfigjson": json.dumps({"auths": auths}).encode()}


def user(data: dict[str, bytes], host: str, repository: str = "team/app") -> str:
    return credential_from_secret(data, host, repository).username


@pytest.mark.parametrize(
    ("key", "host", "is_found"),
    [
        ("r.example", "r.example", True),
        ("https://r.example", "r.example", True),
        ("https://r.example/v2/", "r.example", True),
        ("R.example", "r.example", True),
        ("r.example:5000", "r.example:5000", True),
        ("r.example", "r.example:5000", False),
        ("r.example:5000", "r.example", False),
        ("r.example", "evil-r.example", False),
        ("r.example", "r.example.evil", False),
        ("*.example", "r.example", True),
        ("*.example", "a.r.example", False),
        ("*.*.example", "a.r.example", True),
        ("r-*.example", "r-1.example", True),
        ("*", "r.example", False),
        ("r.example/team", "r.example", True),
        ("r.example/team/app", "r.example", True),
        ("r.example/tea", "r.example", False),
        ("r.example/other", "r.example", False),
        ("https://index.docker.io/v1/", "docker.io", True),
        ("docker.io", "registry-1.docker.io", True),
        ("docker.io", "r.example", False),
    ],
)
def test_an_entry_counts_if_host_port_and_path_match(key: str, host: str, is_found: bool) -> None:
    assert user(docker_config(**{key: "ada"}), host) == ("ada" if is_found else "")


def test_the_longest_match_wins() -> None:
    data = docker_config(**{"*.example": "any", "r.example": "host", "r.example/team": "team", "r.example/x": "x"})
    assert user(data, "r.example", "team/app") == "team"
    assert user(data, "r.example", "else") == "host"
    assert user(data, "q.example") == "any"
    assert credential_from_secret(data, "s.other", "a").is_anonymous


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"auth": base64.b64encode(b"ada:pass:word").decode()}, ("ada", "pass:word", "")),
        ({"username": "ada", "password": "p", "auth": "ignored"}, ("ada", "p", "")),
        ({"identitytoken": "tok", "auth": base64.b64encode(b"ada:").decode()}, ("ada", "", "tok")),
        ({"auth": base64.b64encode(b"<token>:tok").decode()}, ("", "", "tok")),
        ({}, ("", "", "")),
    ],
)
def test_every_form_of_an_entry_is_read(entry: dict[str, str], expected: tuple[str, str, str]) -> None:
    data = {".dockerconfigjson": json.dumps({"auths": {"r.example": entry}, "credsStore": "x"}).encode()}
    found = credential_from_secret(data, "r.example", "a")
    assert (found.username, found.password, found.identity_token) == expected


def test_plain_keys_are_read_and_the_certificate_with_them() -> None:
    data = {"username": b"ada\n", "password": b" s3cret\n", "ca.crt": b"-----BEGIN"}
    found = credential_from_secret(data, "r.example", "a")
    assert (found.username, found.password, found.authority) == ("ada", " s3cret", "-----BEGIN")
    assert credential_from_secret({"ca.crt": b"-----BEGIN"}, "r.example", "a").authority == "-----BEGIN"


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"token": b"s3cret"},
        {"username": b"ada"},
        {"username": b"ada", "ca.crt": b"-----BEGIN"},
        {".dockerconfigjson": b"s3cret"},
        {".dockerconfigjson": b'{"auths": {"r.example": {"auth": "s3cret!"}}}'},
        {".dockerconfigjson": b'{"auths": {"r.example": {"password": ["s3cret"]}}}'},
        {"username": b"ada", "password": b"\xffs3cret"},
    ],
)
def test_a_secret_without_a_credential_is_refused_without_showing_it(data: dict[str, bytes]) -> None:
    with pytest.raises(InvalidRegistrySecret) as refused:
        credential_from_secret(data, "r.example", "a")
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_credential_shows_whose_it_is_and_nothing_else() -> None:
    found = RegistryCredential(username="ada", password="s3cret", identity_token="", authority="pem")
    for shown in (repr(found), str(found), f"{found}", f"{[found]}"):
        assert "ada" in shown
        assert "s3cret" not in shown
    assert "s3cret" not in repr(RegistryCredential(identity_token="s3cret"))
