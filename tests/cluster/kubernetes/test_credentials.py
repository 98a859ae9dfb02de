from pathlib import Path

import pytest

from holdfast.cluster.errors import Misconfigured
from holdfast.cluster.kubernetes.credentials import Certificate, RequestIdentity, StaticCredentials
from holdfast.cluster.kubernetes.kubeconfig import User
from holdfast.cluster.kubernetes.material import RECHECK_S, PemSource


def inline(what: str, data: bytes) -> PemSource:
    return PemSource(what=what, data=data)


async def test_nobody_in_particular_shows_nothing() -> None:
    assert await StaticCredentials(User()).identity(0.0) == RequestIdentity()


async def test_a_token_is_shown_without_the_line_end_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("  t0ken\n")
    user = User(token=PemSource(what="token", path=path))
    assert await StaticCredentials(user).identity(0.0) == RequestIdentity(authorization="Bearer t0ken")


async def test_a_certificate_may_stand_beside_a_token() -> None:
    user = User(
        token=inline("token", b"t"),
        certificate=inline("client-certificate", b"chain"),
        key=inline("client-key", b"key"),
    )
    expected = RequestIdentity(authorization="Bearer t", certificate=Certificate(chain=b"chain", key=b"key"))
    assert await StaticCredentials(user).identity(0.0) == expected


async def test_a_replaced_token_is_shown_after_a_minute_or_once_the_old_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("a")
    credentials = StaticCredentials(User(token=PemSource(what="token", path=path)))
    first = await credentials.identity(0.0)
    path.write_text("bb")
    assert await credentials.identity(RECHECK_S / 2) == first
    await credentials.renew(first, RECHECK_S / 2)
    assert await credentials.identity(RECHECK_S / 2) == RequestIdentity(authorization="Bearer bb")
    path.write_text("ccc")
    assert await credentials.identity(2 * RECHECK_S) == RequestIdentity(authorization="Bearer ccc")


async def test_no_secret_shows_when_an_identity_is_printed() -> None:
    identity = await StaticCredentials(User(username="me", password="hunter2")).identity(0.0)
    assert identity.authorization == "Basic bWU6aHVudGVyMg=="
    assert repr(identity) == "RequestIdentity(…)"
    assert repr(Certificate(chain=b"chain", key=b"s3cret")) == "Certificate(…)"


@pytest.mark.parametrize("token", [b"two words", b"two\nlines", b"\xff\xfe", "ü".encode()])
async def test_what_can_t_be_a_token_is_refused_and_not_shown(token: bytes) -> None:
    with pytest.raises(Misconfigured, match="one line of printable ASCII") as caught:
        await StaticCredentials(User(token=inline("token", token))).identity(0.0)
    assert token.decode(errors="replace") not in str(caught.value)
