"""Tokens: one for all who wait, renewed early, and refused with a reason."""

import asyncio
from random import Random

import pytest

from holdfast.providers.errors import CloudUnauthorized, ProviderError
from holdfast.providers.gcp import tokens
from holdfast.providers.gcp.credentials import parse_service_account
from holdfast.providers.gcp.http import HttpRequest, HttpResponse, NoAnswer
from holdfast.providers.gcp.tokens import (
    AccessToken,
    SharedToken,
    is_google_registry,
    own_identity_tokens,
    registry_token,
    service_account_tokens,
)
from tests.providers.compute_engine.double import ComputeEngine
from tests.providers.compute_engine.faults import lost, refusing
from tests.providers.compute_engine.refusals import Refused, unavailable
from tests.providers.compute_engine.server import InProcess
from tests.providers.gcp.lab import Lab, lab, now
from tests.runtime.virtual import settled, virtual


def shared(it: Lab, key_file: bytes | None = None) -> SharedToken:
    account = parse_service_account(key_file or it.account.key_file())
    uri = it.cloud.endpoint.token_uri
    return service_account_tokens(account, InProcess(it.cloud), now=now, random=Random(0), token_uri=uri)


class Fetch:
    """Hands out numbered tokens, or fails as told."""

    def __init__(self, lifetime_s: float = 3600.0, takes_s: float = 0.0) -> None:
        self.count = 0
        self.lifetime_s = lifetime_s
        self.takes_s = takes_s
        self.error: Exception | None = None

    async def __call__(self) -> AccessToken:
        self.count += 1
        number = self.count
        await asyncio.sleep(self.takes_s)
        if self.error:
            raise self.error
        return AccessToken(value=f"token-{number}", lifetime_s=self.lifetime_s)


@virtual
async def test_a_token_for_an_assertion_that_the_account_signed() -> None:
    async with lab() as it:
        source = shared(it)
        assert await source.token() == await source.token()
        assert it.cloud.accounts.given == [frozenset(tokens.COMPUTE)]


@virtual
async def test_concurrent_calls_share_one_fetch() -> None:
    fetch = Fetch(takes_s=1.0)
    source = SharedToken(fetch)
    got = await asyncio.gather(*(source.token() for _ in range(20)))
    assert set(got) == {"token-1"}
    assert fetch.count == 1


@virtual
async def test_one_that_gives_up_does_not_spoil_it_for_the_others() -> None:
    source = SharedToken(Fetch(takes_s=1.0))
    first, second = (asyncio.create_task(source.token()) for _ in range(2))
    await settled()
    first.cancel()
    assert await second == "token-1"
    assert first.cancelled()


@virtual
async def test_a_fetch_that_fails_when_nobody_waits_any_more_harms_nobody() -> None:
    fetch = Fetch(takes_s=1.0)
    fetch.error = ProviderError("down")
    source = SharedToken(fetch)
    waiting = asyncio.create_task(source.token())
    await settled()
    waiting.cancel()
    await asyncio.sleep(2.0)
    fetch.error = None
    assert await source.token() == "token-2"


@pytest.mark.parametrize(
    ("lifetime_s", "good_for_s", "renewed_after_s"), [(3600.0, 3299.0, 3300.0), (100.0, 79.0, 80.0)]
)
def test_it_is_renewed_before_it_ends(lifetime_s: float, good_for_s: float, renewed_after_s: float) -> None:
    @virtual
    async def run() -> None:
        source = SharedToken(Fetch(lifetime_s))
        await source.token()
        await asyncio.sleep(good_for_s)
        assert await source.token() == "token-1"
        await asyncio.sleep(renewed_after_s - good_for_s)
        assert await source.token() == "token-2"

    run()


@virtual
async def test_while_it_is_good_a_failed_renewal_is_no_failure() -> None:
    fetch = Fetch()
    source = SharedToken(fetch)
    await source.token()
    fetch.error = ProviderError("down")
    await asyncio.sleep(3400)
    assert await source.token() == "token-1"
    assert await source.token() == "token-1"
    assert fetch.count == 2, "it is not asked again at once"
    await asyncio.sleep(200)
    with pytest.raises(ProviderError, match="down"):
        await source.token()


@virtual
async def test_a_key_that_is_refused_is_refused_at_once() -> None:
    fetch = Fetch()
    source = SharedToken(fetch)
    await source.token()
    fetch.error = CloudUnauthorized("revoked")
    await asyncio.sleep(3400)
    with pytest.raises(CloudUnauthorized):
        await source.token()


@virtual
async def test_a_token_that_was_refused_is_not_given_out_again() -> None:
    source = SharedToken(Fetch())
    first = await source.token()
    source.forget("another")
    assert await source.token() == first
    source.forget(first)
    assert await source.token() == "token-2"


@virtual
async def test_a_revoked_key_is_reported_with_what_to_do() -> None:
    async with lab() as it:
        it.account.is_revoked = True
        with pytest.raises(CloudUnauthorized) as caught:
            await shared(it).token()
        assert str(caught.value) == (
            f"Google gives no token for the key {it.account.key_id} of {it.account.email} (invalid_grant: Invalid "
            "grant: account not found): if the key was deleted or the account disabled, store a new key; if neither, "
            "check this machine's clock"
        )


def _with_the_key_of_another(cloud: ComputeEngine) -> bytes:
    """Signed well, by the wrong one."""
    other = cloud.add_account("other@my-gcp-project.iam.gserviceaccount.com")
    return other.key_file(client_email="trainer@my-gcp-project.iam.gserviceaccount.com")


@virtual
async def test_the_signature_is_what_counts() -> None:
    async with lab() as it:
        with pytest.raises(CloudUnauthorized, match="Invalid JWT Signature"):
            await shared(it, _with_the_key_of_another(it.cloud)).token()


@virtual
async def test_a_clock_that_is_off_is_reported() -> None:
    async with lab() as it:
        account = parse_service_account(it.account.key_file())
        source = service_account_tokens(
            account,
            InProcess(it.cloud),
            now=lambda: now().replace(year=2020),
            random=Random(0),
            token_uri=it.cloud.endpoint.token_uri,
        )
        with pytest.raises(CloudUnauthorized, match=r"reasonable timeframe.*check this machine's clock"):
            await source.token()


@virtual
async def test_faults_that_pass_are_waited_out_or_reported_as_such() -> None:
    async with lab() as it:
        it.cloud.faults.add("token", refusing(unavailable()), lost(executed=False))
        source = shared(it)
        await source.token()
        source.forget(await source.token())
        it.cloud.faults.add("token", refusing(unavailable()), times=3)
        with pytest.raises(ProviderError) as caught:
            await source.token()
        assert type(caught.value) is ProviderError
        assert str(caught.value) == f"can't ask Google for a token of {it.account.email}: the answer is 503"
        it.cloud.faults.add("token", lost(executed=False, loss="timeout"), times=3)
        with pytest.raises(ProviderError, match="did not answer within 60 s"):
            await source.token()


class Answers:
    """`Http` with one answer."""

    def __init__(self, status: int, body: bytes) -> None:
        self.response = HttpResponse(status=status, body=body)

    async def send(self, request: HttpRequest) -> HttpResponse:
        return self.response

    async def close(self) -> None:
        raise NoAnswer("nobody closes it")


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (200, b"", ProviderError, "has no token"),
        (200, b'{"access_token": ""}', ProviderError, "has no token"),
        (200, b'{"access_token": "a\\nb", "expires_in": 3599}', ProviderError, "has no token"),
        (200, b'{"access_token": 5}', ProviderError, "has no token"),
        (302, b"", ProviderError, "the answer (302) has no token"),
        (400, b"<html>", CloudUnauthorized, "it says no reason"),
        (401, b'{"error": "invalid_client"}', CloudUnauthorized, "invalid_client"),
        (403, b'{"error": "x\\u001b[31m"}', CloudUnauthorized, "it says no reason"),
    ],
)
def test_strange_answers(status: int, body: bytes, kind: type[ProviderError], said: str) -> None:
    @virtual
    async def run() -> None:
        async with lab() as it:
            account = parse_service_account(it.account.key_file())
            source = service_account_tokens(account, Answers(status, body), now=now, random=Random(0))
            with pytest.raises(kind) as caught:
                await source.token()
            assert type(caught.value) is kind
            assert said in str(caught.value)

    run()


@virtual
async def test_the_operators_own_identity() -> None:
    async with lab() as it:
        source = own_identity_tokens(InProcess(it.cloud), random=Random(0), address=it.cloud.endpoint.metadata)
        with pytest.raises(CloudUnauthorized, match="has no service account: name a Secret"):
            await source.token()
        it.cloud.accounts.own = it.account
        assert await source.token()
        assert len(it.cloud.accounts.given) == 1


@pytest.mark.parametrize(("push", "scope"), [(True, "read_write"), (False, "read_only")])
def test_a_token_for_a_registry_makes_no_machines(push: bool, scope: str) -> None:
    @virtual
    async def run() -> None:
        async with lab() as it:
            account = parse_service_account(it.account.key_file())
            uri = it.cloud.endpoint.token_uri
            credential = await registry_token(
                account, InProcess(it.cloud), now=now, random=Random(0), token_uri=uri, push=push
            )
            assert credential.username == "oauth2accesstoken"
            assert credential.password
            assert it.cloud.accounts.given == [frozenset((f"https://www.googleapis.com/auth/devstorage.{scope}",))]
            with pytest.raises(Refused, match="insufficient authentication scopes"):
                it.cloud.accounts.owner({"Authorization": f"Bearer {credential.password}"})

    run()


@pytest.mark.parametrize(
    ("host", "is_google"),
    [
        ("gcr.io", True),
        ("eu.gcr.io", True),
        ("us-central1-docker.pkg.dev", True),
        ("evil-gcr.io", False),
        ("gcr.io.example.com", False),
        ("docker.io", False),
        ("docker.pkg.dev", False),
        ("127.0.0.1:5000", False),
    ],
)
def test_the_registries_of_google(host: str, is_google: bool) -> None:
    assert is_google_registry(host) == is_google


@virtual
async def test_no_token_is_shown() -> None:
    source = SharedToken(Fetch())
    token = await source.token()
    shown = [
        repr(source),
        repr(AccessToken(value=token, lifetime_s=1.0)),
        repr(HttpResponse(status=200, body=token.encode())),
        repr(HttpRequest(method="GET", url="http://x", headers={"Authorization": token}, body=token.encode())),
    ]
    assert not [text for text in shown if token in text]
