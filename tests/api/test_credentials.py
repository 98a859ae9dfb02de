"""The messages about a registry's credential: bounded, and never quoted."""

import pytest

from holdfast.api.credentials import (
    CredentialRequest,
    InvalidCredentialMessage,
    RegistryCredential,
    decode_credential,
    decode_request,
)


def test_a_request_names_one_run() -> None:
    body = b'{"namespace":"ml","backup":"hourly","uid":"u","run":3}'
    assert decode_request(body) == CredentialRequest(namespace="ml", backup="hourly", uid="u", run=3)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"namespace":"ml","backup":"hourly","uid":"u","run":0}', b"\xff", b"[" * 9999]
)
def test_a_request_that_names_no_run_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidCredentialMessage):
        decode_request(body)


def test_a_credential_is_read_and_never_printed() -> None:
    found = decode_credential(b'{"username":"amy","password":"hunter2","authority":"PEM"}')
    assert found == RegistryCredential(username="amy", password="hunter2", authority="PEM")
    assert "hunter2" not in f"{found!r} {found}"


def test_a_broken_answer_is_not_quoted() -> None:
    with pytest.raises(InvalidCredentialMessage) as error:
        decode_credential(b'{"password":"hunter2"')
    assert "hunter2" not in str(error.value)
