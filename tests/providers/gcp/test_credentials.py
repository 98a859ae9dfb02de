"""credentials.json: the key of a service account, and nothing else."""

import json

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.providers.errors import CloudUnauthorized
from holdfast.providers.gcp.credentials import LARGEST_FILE, parse_service_account
from tests.providers.compute_engine.accounts import Account

ACCOUNT = Account("trainer@my-gcp-project.iam.gserviceaccount.com", 0, ())
PEM = json.loads(ACCOUNT.key_file())["private_key"]
ELLIPTIC = (
    ec.generate_private_key(ec.SECP256R1())
    .private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    .decode()
)
WHAT_TO_WRITE = (
    "store the JSON key file of a service account, as Google made it, under the Secret's key credentials.json"
)


def without(*names: str) -> bytes:
    return json.dumps({k: v for k, v in json.loads(ACCOUNT.key_file()).items() if k not in names}).encode()


def test_a_key_file_as_google_makes_it() -> None:
    account = parse_service_account(ACCOUNT.key_file())
    assert account.email == "trainer@my-gcp-project.iam.gserviceaccount.com"
    assert account.project == "my-gcp-project"
    assert account.identity == f"{account.email}/{ACCOUNT.key_id}"


@pytest.mark.parametrize(
    "token_uri",
    [
        "https://oauth2.googleapis.com/token",
        "https://accounts.google.com/o/oauth2/token",
        "https://www.googleapis.com/oauth2/v4/token",
    ],
)
def test_the_addresses_that_google_had(token_uri: str) -> None:
    parse_service_account(ACCOUNT.key_file(token_uri=token_uri))


def test_the_address_of_the_configured_endpoint() -> None:
    own = "http://127.0.0.1:8080/token"
    parse_service_account(ACCOUNT.key_file(token_uri=own), token_uri=own)
    with pytest.raises(CloudUnauthorized, match="as token_uri"):
        parse_service_account(ACCOUNT.key_file(token_uri=own))


@pytest.mark.parametrize(
    "kind",
    [
        "authorized_user",
        "external_account",
        "external_account_authorized_user",
        "impersonated_service_account",
        "gdch_service_account",
        "",
    ],
)
def test_other_types_are_refused_with_the_reason(kind: str) -> None:
    with pytest.raises(CloudUnauthorized) as caught:
        parse_service_account(ACCOUNT.key_file(type=kind))
    said = f"is of type '{kind}'" if kind else "says no type"
    assert str(caught.value) == (
        f"credentials.json {said}, and only service_account is accepted, since other types can make their reader fetch "
        f"addresses, read files or run programs: {WHAT_TO_WRITE}"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "credentials.json is not JSON"),
        (b"\xff\xfe", "credentials.json is not JSON"),
        (b"[" * 100_000, "bytes, more than any key"),
        (b"[" * 20_000, "credentials.json is not"),
        (b"x" * (LARGEST_FILE + 1), "bytes, more than any key"),
        (b"[]", "is not the key of a service account"),
        (b'{"type": 1}', "is not the key of a service account"),
        (without("private_key"), "lacks private_key:"),
        (without("client_email", "private_key_id"), "lacks client_email and private_key_id:"),
        (without("token_uri"), "names nothing as token_uri"),
        (ACCOUNT.key_file(token_uri="https://evil.example/token"), "names 'https://evil.example/token' as token_uri"),
        (ACCOUNT.key_file(token_uri="http://oauth2.googleapis.com/token"), "as token_uri"),
        (ACCOUNT.key_file(universe_domain="evil.example"), "is for 'evil.example'"),
        (ACCOUNT.key_file(private_key="no key"), "the private_key in credentials.json can't be read"),
        (ACCOUNT.key_file(private_key=ELLIPTIC), "is not an RSA key"),
    ],
)
def test_what_can_not_be_used_is_refused_with_what_to_write(content: bytes, said: str) -> None:
    with pytest.raises(CloudUnauthorized) as caught:
        parse_service_account(content)
    assert said in str(caught.value)
    assert str(caught.value).endswith(WHAT_TO_WRITE)


def test_long_values_are_not_quoted_whole() -> None:
    with pytest.raises(CloudUnauthorized) as caught:
        parse_service_account(ACCOUNT.key_file(type="t" * 10_000))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "content",
    [
        ACCOUNT.key_file(type="authorized_user"),
        ACCOUNT.key_file(client_email=1),
        ACCOUNT.key_file(token_uri="http://evil.example"),
        ACCOUNT.key_file(private_key=PEM.replace("M", "N", 3)),
        ACCOUNT.key_file()[:-1],
    ],
)
def test_no_part_of_the_key_is_in_an_error(content: bytes) -> None:
    with pytest.raises(CloudUnauthorized) as caught:
        parse_service_account(content)
    said = f"{caught.value!r} {caught.value.__cause__!r}"
    lines = [line for line in PEM.splitlines() if "PRIVATE" not in line]
    assert not [line for line in lines if line[:12] in said]


def test_the_key_is_shown_nowhere() -> None:
    account = parse_service_account(ACCOUNT.key_file())
    assert repr(account) == str(account) == "ServiceAccount(trainer@my-gcp-project.iam.gserviceaccount.com)"
    assert "PRIVATE" not in repr(vars(account))
