"""Whatever ends a push, no tag names half an image; lists of any length are read; no credential is shown anywhere."""

import asyncio
import base64
import io
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress

import aiohttp
import msgspec
import pytest
import structlog

from holdfast.api.credentials import RegistryCredential
from holdfast.checkpoints.images.errors import RedirectRefused, RegistryError, RegistryUnauthorized
from holdfast.checkpoints.images.image import BytesBlob, parse_manifest
from holdfast.checkpoints.images.newest import images_of, newest_run
from holdfast.checkpoints.images.reference import run_tag
from holdfast.checkpoints.images.registry import push_image
from holdfast.checkpoints.images.transport import RegistryRequest, RegistryTransport
from tests.checkpoints.images.faults import FaultyRegistry, answers
from tests.checkpoints.images.registries import PASSWORD, USER, RunningRegistry, TokenService
from tests.checkpoints.images.test_image import FACTS
from tests.checkpoints.images.test_newest import manifest
from tests.checkpoints.images.test_reference import AT
from tests.checkpoints.images.test_registry import fetched, fresh_repository

ARCHIVE = bytes(range(256)) * 4096


@pytest.fixture
async def faulty(registry_server: RunningRegistry) -> AsyncIterator[FaultyRegistry]:
    async with FaultyRegistry(registry_server).running() as proxy:
        yield proxy


# Crashes.


class Crash(BaseException):
    """The process ends here: nothing that would run afterwards runs."""


class CrashingTransport:
    """Ends the process before or after a request, and lets no request through from then on."""

    def __init__(self, crash_at: float) -> None:
        self.crash_at = crash_at
        self.requests: list[str] = []
        self._send = RegistryTransport._send

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        crashing = self

        async def send(
            transport: RegistryTransport, ask: RegistryRequest, url: str, authorization: str | None
        ) -> aiohttp.ClientResponse:
            return await crashing.send(transport, ask, url, authorization)

        monkeypatch.setattr(RegistryTransport, "_send", send)

    async def send(
        self, transport: RegistryTransport, ask: RegistryRequest, url: str, authorization: str | None
    ) -> aiohttp.ClientResponse:
        number = len(self.requests)
        if number >= self.crash_at:
            raise Crash
        self.requests.append(f"{ask.method} {url.rpartition('/v2/')[2].partition('?')[0]}")
        response = await self._send(transport, ask, url, authorization)
        if number + 0.5 >= self.crash_at:
            response.close()
            raise Crash
        return response


async def push(registry: RunningRegistry, repository: str) -> None:
    async with registry.client() as client:
        await push_image(client, repository, "n-main-000001-20260101T000000Z", FACTS, BytesBlob(ARCHIVE))


async def pulled(registry: RunningRegistry, repository: str) -> list[str]:
    """Pull every tag of a repository, verified."""
    async with registry.client() as client:
        tags = await client.tags(repository)
        for tag in tags:
            digest = await client.resolve_tag(repository, tag)
            assert digest is not None
            found = parse_manifest(await client.manifest(repository, digest), tag)
            assert found.config is not None
            for blob in (found.config, *found.layers):
                assert len(await fetched(client, repository, blob)) == blob.size
        return tags


async def test_a_crash_at_any_step_leaves_no_tag_that_cannot_be_pulled(
    registry_server: RunningRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = CrashingTransport(1000)
    with monkeypatch.context() as patched:
        undisturbed.install(patched)
        await push(registry_server, fresh_repository())
    steps = len(undisturbed.requests)
    assert [each.split()[0] for each in undisturbed.requests] == [
        *("POST", "POST", "PATCH", "PUT"),  # the layer; the first request learns that a password is wanted
        *("HEAD", "POST", "PATCH", "PUT"),  # the config
        *("PUT", "PUT"),  # the manifest by digest, then the tag
    ]
    tagged = []
    for crash_at in [step / 2 for step in range(2 * steps)]:
        repository = fresh_repository()
        with monkeypatch.context() as patched:
            CrashingTransport(crash_at).install(patched)
            with suppress(Crash):
                await push(registry_server, repository)
        tagged.append(bool(await pulled(registry_server, repository)))
        await push(registry_server, repository)
        assert await pulled(registry_server, repository) == ["n-main-000001-20260101T000000Z"]
    assert tagged == [False] * (2 * steps - 1) + [True], "only after the last request there is a tag"


async def test_a_push_that_is_cancelled_has_the_registry_forget_it(faulty: FaultyRegistry) -> None:
    began, repository = asyncio.Event(), fresh_repository()
    loop = asyncio.get_running_loop()

    class Endless:
        size = 1 << 40

        def read(self, offset: int) -> Iterator[bytes]:
            while True:
                yield bytes(1 << 16)
                loop.call_soon_threadsafe(began.set)

    async with faulty.client() as client:
        task = asyncio.create_task(client.push_blob(repository, Endless()))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.tags(repository) == []
    assert len(faulty.requests("DELETE", "/blobs/uploads/.")) == 1


# Lists.


async def test_ours_are_found_among_ten_thousand_tags_in_many_pages(faulty: FaultyRegistry) -> None:
    ours = [run_tag("n", "main", run, AT) for run in (3, 1, 2)]
    odd = run_tag("n", "main", 9, AT)
    tags = [f"v1.{number}" for number in range(9_996)]
    tags[10:10], tags[5000:5000], tags[9990:9990] = ours[:1], [ours[1], odd], ours[2:]
    for start in range(0, len(tags), 1000):
        page = msgspec.json.encode({"name": "team/app", "tags": tags[start : start + 1000]})
        following = {"Link": f'</v2/team/app/tags/list?last={start}&n=1000>; rel="next"'} if start < 9000 else {}
        faulty.on("GET", "/tags/list", answers(200, page, **following))
    for tag, run in zip(ours, (3, 1, 2), strict=True):
        faulty.on("GET", f"/manifests/{tag}", answers(200, manifest(run)))
    faulty.on("GET", f"/manifests/{odd}", answers(200, b'{"schemaVersion": 2, "layers": []}'))
    async with faulty.client() as client:
        found = await images_of(client, "team/app", "uid-1", ["n-main"])
    assert [image.run for image in found] == [1, 2, 3]
    assert [image.run for image in newest_run(found, "uid-1")] == [3]
    assert len(faulty.requests("GET", "/tags/list")) == 10
    assert len(faulty.requests("GET", "/manifests/")) == 4, "of foreign tags nothing is asked"


async def test_a_next_page_on_another_host_is_not_asked_for(faulty: FaultyRegistry) -> None:
    page = msgspec.json.encode({"tags": ["a"]})
    faulty.on("GET", "/tags/list", answers(200, page, Link='<https://other.example/v2/list>; rel="next"'))
    async with faulty.client() as client:
        with pytest.raises(RegistryError, match="the next page is on another host"):
            await client.tags("team/app")


async def test_a_list_that_never_ends_is_ended(faulty: FaultyRegistry) -> None:
    page = msgspec.json.encode({"tags": ["a"]})
    faulty.on("GET", "/tags/list", *[answers(200, page, Link='</v2/team/app/tags/list>; rel="next"')] * 9)
    async with faulty.client() as client:
        assert await client.tags("team/app") == ["a"]
    assert len(faulty.requests("GET", "/tags/list")) == 2


# Credentials.


def bearer(realm: str) -> str:
    return f'Bearer realm="{realm}",service="tests"'


async def test_a_token_service_may_not_redirect(faulty: FaultyRegistry) -> None:
    async with faulty.client() as client, FaultyRegistry(faulty.registry).running() as other:
        realm = f"{faulty.address.origin}/token"
        faulty.on("GET", "/tags/list", answers(401, WWW_Authenticate=bearer(realm)))
        faulty.on("GET", "/token", answers(307, Location=f"{other.address.origin}/token"))
        with pytest.raises(RedirectRefused, match="a credential follows no redirect"):
            await client.tags("team/app")
    assert other.seen == []


async def test_a_token_service_without_tls_that_is_not_listed_gets_no_password(faulty: FaultyRegistry) -> None:
    async with faulty.client() as client, FaultyRegistry(faulty.registry).running() as other:
        faulty.on("GET", "/tags/list", answers(401, WWW_Authenticate=bearer(f"{other.address.origin}/token")))
        with pytest.raises(RedirectRefused, match="which is not reached without TLS"):
            await client.tags("team/app")
    assert other.seen == []


async def test_a_token_that_is_refused_is_fetched_once_more_and_then_reported(faulty: FaultyRegistry) -> None:
    challenge = bearer(f"{faulty.address.origin}/token")
    for number in range(2):
        faulty.on("GET", "/token", answers(200, b'{"token": "t%d", "expires_in": 3600}' % number))
    faulty.on("GET", "/tags/list", *[answers(401, WWW_Authenticate=challenge)] * 3)
    async with faulty.client() as client:
        with pytest.raises(RegistryUnauthorized, match="put a valid one into the Secret"):
            await client.tags("team/app")
    sent = [each.authorization for each in faulty.requests("GET", "/tags/list")]
    assert sent == ["", "Bearer t0", "Bearer t1"]


async def test_no_credential_is_in_any_log_error_or_representation(
    faulty: FaultyRegistry,
    token_registry_server: tuple[RunningRegistry, TokenService],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    shown, output = list[object](), io.StringIO()
    with structlog.testing.capture_logs() as logs, redirect_stdout(output), redirect_stderr(output):
        for registry in (faulty.registry, token_registry_server[0]):
            for password in (PASSWORD, "wr0ng"):
                async with registry.client(password) as client:
                    shown += [client, client._transport, client._transport._auth, vars(client)]
                    try:
                        shown.append(await push_image(client, "team/app", "t", FACTS, BytesBlob(b"x")))
                    except RegistryError as error:
                        shown += [error, error.__cause__, error.__context__]
        faulty.on("POST", "uploads/$", answers(500), answers(403, b'{"errors": [{"code": "DENIED"}]}'))
        async with faulty.client() as client:
            with pytest.raises(RegistryError) as refused:
                await client.push_blob("team/app", BytesBlob(b"y"))
            shown.append(refused.value)
        token = RegistryCredential(identity_token="refresh-t0ken", authority="PEM")
        shown.append(token)
    loop.set_debug(False)
    text = "\n".join((output.getvalue(), caplog.text, str(logs), *map(repr, shown), *map(str, shown)))
    secrets = [PASSWORD, "wr0ng", "refresh-t0ken", base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode(), "eyJ"]
    assert [each for each in secrets if each in text] == []
