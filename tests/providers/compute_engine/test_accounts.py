"""Tokens are given for assertions that are signed with the right key, and are good for an hour."""

import asyncio

import pytest

from tests.providers.compute_engine.client import client
from tests.runtime.virtual import virtual


@virtual
async def test_a_token_for_a_signed_assertion() -> None:
    async with client() as it:
        reply = await it.fetch_token()
        assert reply.status == 200
        assert reply.content["token_type"] == "Bearer"
        assert reply.content["expires_in"] == 3599
        assert (await it.ask("GET", "zones")).status == 200


@virtual
async def test_the_audience_may_be_googles() -> None:
    async with client() as it:
        assert (await it.fetch_token(audience="https://oauth2.googleapis.com/token")).status == 200


@virtual
async def test_the_signature_is_verified() -> None:
    async with client() as it:
        other = it.cloud.add_account("other@my-gcp-project.iam.gserviceaccount.com")
        for forged in (
            other.key_file(client_email=it.account.email),
            other.key_file(client_email=it.account.email, private_key_id=it.account.key_id),
        ):
            refused = await it.fetch_token(key_file=forged)
            assert (refused.status, refused.content["error_description"]) == (400, "Invalid JWT Signature.")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hours": 1.5}, "reasonable timeframe"),
        ({"hours": -1.5}, "reasonable timeframe"),
        ({"audience": "https://evil.example/token"}, "Failed audience check"),
        ({"grant": "client_credentials"}, "Invalid grant_type"),
    ],
)
def test_what_is_wrong_is_refused(changes: dict[str, object], said: str) -> None:
    @virtual
    async def run() -> None:
        async with client() as it:
            refused = await it.fetch_token(**changes)  # type: ignore[arg-type]
            assert refused.status == 400
            assert said in refused.content["error_description"]

    run()


@virtual
async def test_a_revoked_account_gets_none_and_its_tokens_end() -> None:
    async with client() as it:
        await it.ask("GET", "zones")
        it.account.is_revoked = True
        assert (await it.ask("GET", "zones")).status == 401
        assert (await it.fetch_token()).status == 400


@virtual
async def test_a_token_ends_after_an_hour() -> None:
    async with client() as it:
        await it.ask("GET", "zones")
        await asyncio.sleep(3601)
        assert (await it.ask("GET", "zones")).status == 401
        assert (await it.ask("GET", "zones", token="ya29.guessed")).status == 401
        assert (await it.ask("GET", "zones", token="")).status == 401


@virtual
async def test_each_method_asks_for_its_permission() -> None:
    async with client() as it:
        it.account.permissions.discard("compute.zones.list")
        refused = await it.ask("GET", "zones")
        assert refused.status == 403
        assert refused.content["error"]["message"] == (
            "Required 'compute.zones.list' permission for 'projects/my-gcp-project'"
        )
