"""A registry that refuses, breaks off, redirects or is silent: what is tried again, from where, and what is told."""

import json
import os
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest

from holdfast.checkpoints.images.errors import (
    DigestMismatch,
    LayerTooLarge,
    RedirectRefused,
    RegistryError,
    RegistryForbidden,
    RegistryUnauthorized,
    RegistryUnreachable,
    RepositoryNotFound,
)
from holdfast.checkpoints.images.image import BytesBlob, Descriptor, sha256_digest
from holdfast.checkpoints.images.registry import push_image
from tests.checkpoints.images.faults import (
    Fault,
    FaultyRegistry,
    answers,
    breaks_after,
    breaks_and_keeps,
    forgets,
    is_silent,
    loses_answer,
    resets,
    tampers,
)
from tests.checkpoints.images.registries import PASSWORD, RunningRegistry
from tests.checkpoints.images.test_image import FACTS
from tests.checkpoints.images.test_registry import fetched, fresh_repository

WHOLE = os.urandom(6 << 20)
HALF = 3 << 20
LAYER = Descriptor(media_type="x", digest=sha256_digest(WHOLE), size=len(WHOLE))
UPLOAD = "/blobs/uploads/."


@pytest.fixture
async def faulty(registry_server: RunningRegistry) -> AsyncIterator[FaultyRegistry]:
    async with FaultyRegistry(registry_server).running() as proxy:
        yield proxy


async def pushed(faulty: FaultyRegistry, **options: float) -> tuple[str, bytes]:
    """Push a blob; its digest, and what the registry has of it."""
    repository = fresh_repository()
    async with faulty.client(**options) as client:  # type: ignore[arg-type]
        digest = await client.push_blob(repository, BytesBlob(WHOLE))
    async with faulty.registry.client() as client:
        return digest, await fetched(client, repository, LAYER)


# Uploads that are broken off.


async def test_one_post_one_patch_with_all_and_one_put(faulty: FaultyRegistry) -> None:
    assert await pushed(faulty) == (LAYER.digest, WHOLE)
    # The first request learns that a password is wanted.
    assert [each.method for each in faulty.seen] == ["POST", "POST", "PATCH", "PUT"]
    assert faulty.requests("PATCH")[0].content_range == ""
    assert faulty.clock.pauses == []


async def test_a_broken_upload_goes_on_from_the_registrys_offset(faulty: FaultyRegistry) -> None:
    faulty.on("PATCH", UPLOAD, breaks_and_keeps(HALF))
    assert await pushed(faulty) == (LAYER.digest, WHOLE)
    assert len(faulty.requests("POST")) == 2, "the same upload goes on"
    assert len(faulty.requests("GET", UPLOAD)) == 1
    first, second = faulty.requests("PATCH")
    assert first.content_range == ""
    assert second.content_range == f"{HALF}-{len(WHOLE) - 1}"


@pytest.mark.parametrize(
    "offset_answer",
    [answers(404), answers(405), answers(204), answers(202, Range="0-0"), answers(200, Range="odd"), None],
    ids=["404", "405", "without a range", "of nothing", "odd", "as docker-registry answers"],
)
async def test_without_an_offset_the_upload_begins_anew(faulty: FaultyRegistry, offset_answer: Fault | None) -> None:
    faulty.on("PATCH", UPLOAD, breaks_after(HALF))
    if offset_answer is not None:
        faulty.on("GET", UPLOAD, offset_answer)
    assert await pushed(faulty) == (LAYER.digest, WHOLE)
    assert [each.content_range for each in faulty.requests("PATCH")] == ["", ""]
    assert len(faulty.requests("DELETE", UPLOAD)) == 1, "the registry is told to forget the first one"


async def test_an_offset_that_the_registry_does_not_keep_to_is_not_tried_twice(faulty: FaultyRegistry) -> None:
    faulty.on("PATCH", UPLOAD, breaks_and_keeps(HALF), answers(416))
    faulty.on("DELETE", UPLOAD, forgets)
    assert await pushed(faulty) == (LAYER.digest, WHOLE)
    assert [bool(each.content_range) for each in faulty.requests("PATCH")] == [False, True, False]


async def test_an_upload_that_the_registry_has_forgotten_begins_anew(faulty: FaultyRegistry) -> None:
    faulty.on("PATCH", UPLOAD, answers(404, b'{"errors": [{"code": "BLOB_UPLOAD_UNKNOWN"}]}'))
    assert await pushed(faulty) == (LAYER.digest, WHOLE)
    assert len(faulty.requests("PATCH")) == 2


async def test_a_lost_answer_to_the_last_request_costs_no_second_upload(faulty: FaultyRegistry) -> None:
    faulty.on("PUT", UPLOAD, loses_answer)
    assert await pushed(faulty) == (LAYER.digest, WHOLE)
    assert len(faulty.requests("PATCH")) == 1


async def test_a_lost_answer_to_the_stream_costs_no_second_stream(faulty: FaultyRegistry) -> None:
    faulty.on("PATCH", UPLOAD, breaks_and_keeps(len(WHOLE)))
    faulty.on("PUT", UPLOAD, answers(201))
    async with faulty.client() as client:
        assert await client.push_blob("team/app", BytesBlob(WHOLE)) == LAYER.digest
    assert [len(faulty.requests(method)) for method in ("PATCH", "PUT")] == [1, 1]


async def test_a_password_that_is_refused_in_the_middle_is_reported(faulty: FaultyRegistry) -> None:
    faulty.on("PATCH", UPLOAD, answers(401, WWW_Authenticate='Basic realm="x"'))
    with pytest.raises(RegistryUnauthorized, match="put a valid one into the Secret"):
        await pushed(faulty)


# Failures that pass.


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
@pytest.mark.parametrize(("method", "path"), [("POST", "uploads/$"), ("PATCH", UPLOAD), ("PUT", UPLOAD)])
async def test_a_failure_that_passes_is_tried_again(
    faulty: FaultyRegistry, status: int, method: str, path: str
) -> None:
    faulty.on(method, path, answers(status))
    assert await pushed(faulty) == (LAYER.digest, WHOLE)
    assert len(faulty.clock.pauses) == 1


@pytest.mark.parametrize("fault", [resets, is_silent])
@pytest.mark.parametrize(("method", "path"), [("POST", "uploads/$"), ("PATCH", UPLOAD), ("PUT", UPLOAD)])
async def test_a_reset_and_silence_are_tried_again(
    faulty: FaultyRegistry, fault: Fault, method: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.checkpoints.images.upload.COMMIT_S", 1.0)
    faulty.on(method, path, fault)
    assert await pushed(faulty, idle_s=1.0) == (LAYER.digest, WHOLE)


async def test_who_can_not_be_reached_is_named_with_the_reason(faulty: FaultyRegistry) -> None:
    async with faulty.client(for_s=5.0) as client:
        client._transport._plain_http |= {"127.0.0.1:1"}
        challenge = 'Bearer realm="http://127.0.0.1:1/token"'
        faulty.on("GET", "/tags/list", *[answers(401, WWW_Authenticate=challenge)] * 9)
        with pytest.raises(RegistryUnreachable, match=r"127\.0\.0\.1:1 can't be reached \(Connection refused\)"):
            await client.tags("team/app")


async def test_pauses_are_the_registrys_or_grow(faulty: FaultyRegistry) -> None:
    dated = answers(503, Date="Wed, 21 Oct 2026 07:28:00 GMT", Retry_After="Wed, 21 Oct 2026 07:28:09 GMT")
    busy = [answers(503), answers(503), answers(429, Retry_After="7"), dated, answers(500)]
    faulty.on("POST", "uploads/$", *busy)
    assert await pushed(faulty) == (LAYER.digest, WHOLE)
    assert faulty.clock.pauses == [1.0, 2.0, 7.0, 9.0, 16.0]


async def test_at_the_deadline_the_last_failure_is_reported(faulty: FaultyRegistry) -> None:
    faulty.on("POST", "uploads/$", *[answers(503, b'{"errors": [{"code": "UNAVAILABLE", "message": "full"}]}')] * 99)
    with pytest.raises(RegistryUnreachable, match=r"answers 503 UNAVAILABLE: full \(6 tries, and no time is left"):
        await pushed(faulty, for_s=60.0)
    assert sum(faulty.clock.pauses) < 60


async def test_an_upload_that_gets_on_is_not_given_up_for_its_many_breaks(faulty: FaultyRegistry) -> None:
    """Each break after some progress begins with small pauses again."""
    faulty.on("PATCH", UPLOAD, *[breaks_and_keeps(256 << 10)] * 20)
    assert await pushed(faulty, for_s=120.0) == (LAYER.digest, WHOLE)
    assert len(faulty.requests("PATCH")) == 21
    assert max(faulty.clock.pauses) <= 1.0


# Refusals.


@pytest.mark.parametrize(
    ("fault", "error", "sentence"),
    [
        (answers(403, b'{"errors": [{"code": "DENIED", "message": "quota"}]}'), RegistryForbidden, "DENIED: quota"),
        (answers(403), RegistryForbidden, "give it the right to do so"),
        (answers(404, b'{"errors": [{"code": "NAME_UNKNOWN"}]}'), RepositoryNotFound, "create the repository"),
        (answers(400), RegistryError, "look at the registry's log"),
    ],
)
async def test_a_refusal_is_reported_at_once(
    faulty: FaultyRegistry, fault: Fault, error: type[RegistryError], sentence: str
) -> None:
    faulty.on("POST", "uploads/$", fault)
    with pytest.raises(error, match=sentence) as refused:
        await pushed(faulty)
    assert faulty.clock.pauses == []
    assert PASSWORD not in str(refused.value)


async def test_a_layer_that_is_too_large_is_reported_with_its_size_and_not_tagged(faulty: FaultyRegistry) -> None:
    repository = fresh_repository()
    faulty.on("PATCH", UPLOAD, answers(413))
    async with faulty.client() as client:
        with pytest.raises(LayerTooLarge, match=f"there are {len(WHOLE)} bytes"):
            await push_image(client, repository, "t", FACTS, BytesBlob(WHOLE))
        assert await client.tags(repository) == []
    assert faulty.clock.pauses == []


async def test_content_that_changes_on_the_way_is_reported_and_not_tagged(faulty: FaultyRegistry) -> None:
    repository = fresh_repository()
    faulty.on("PATCH", UPLOAD, tampers)
    async with faulty.client() as client:
        with pytest.raises(DigestMismatch, match="nothing is tagged"):
            await push_image(client, repository, "t", FACTS, BytesBlob(WHOLE))
        assert await client.tags(repository) == []


@pytest.mark.parametrize(
    "quoted", [f"Authorization was {PASSWORD}", "bad header Basic YWRhOnMzY3JldA==", "got bearer eyJhbGciOi.J9"]
)
async def test_a_registry_that_quotes_the_credential_is_not_quoted(faulty: FaultyRegistry, quoted: str) -> None:
    faulty.on("POST", "uploads/$", answers(403, json.dumps({"errors": [{"message": quoted}]}).encode()))
    with pytest.raises(RegistryForbidden, match="give it the right") as refused:
        await pushed(faulty)
    assert quoted not in str(refused.value)


# Answers that no registry should give.

NOWHERE = ("//[x", "https://[::g]/x", "https://registry.example:99999/", "https://registry.example:port/", "https:///x")
OTHERS = ("https://ada:pass@registry.example/", "https://registry.example/\u00e9")


@pytest.mark.parametrize("target", [*NOWHERE, *OTHERS])
async def test_what_leads_to_no_address_is_told(faulty: FaultyRegistry, target: str) -> None:
    async with faulty.client() as client:
        faulty.on("GET", "/blobs/sha256", answers(307, Location=target))
        with pytest.raises(RegistryError, match="which is no address: look at the registry's settings"):
            await fetched(client, "team/app", LAYER)
        faulty.on("POST", "uploads/$", answers(202, Location=target))
        with pytest.raises(RegistryError, match=r"can't go on with an upload: .* which is no address"):
            await client.push_blob("team/app", BytesBlob(WHOLE))
        faulty.on("GET", "/tags/list", answers(200, b'{"tags": ["t"]}', Link=f'<{target}>; rel="next"'))
        with pytest.raises(RegistryError, match="which is no address"):
            await client.tags("team/app")
        faulty.on("GET", "/manifests/t", answers(401, WWW_Authenticate=f'Bearer realm="{target}",service="x"'))
        with pytest.raises(RegistryError, match="asks for a token and names no service"):
            await client.manifest("team/app", "t")


@pytest.mark.parametrize("body", [b"\xff", b'{"tags": ["\xff"]}', b'{"name":' + b"[" * 30_000, b'{"tags": [1]}', b""])
async def test_a_list_that_can_not_be_read_is_told(faulty: FaultyRegistry, body: bytes) -> None:
    faulty.on("GET", "/tags/list", answers(200, body))
    async with faulty.client() as client:
        with pytest.raises(RegistryError, match="the answer can't be read"):
            await client.tags("team/app")


@pytest.mark.parametrize("body", [b'{"errors": [{"code": "\xff"}]}', b'{"errors":' + b"[" * 30_000, b"x" * 100_000])
async def test_a_refusal_of_any_content_is_told(faulty: FaultyRegistry, body: bytes) -> None:
    faulty.on("POST", "uploads/$", answers(403, body))
    with pytest.raises(RegistryForbidden, match="give it the right"):
        await pushed(faulty)


async def test_an_offset_of_thousands_of_digits_is_none(faulty: FaultyRegistry) -> None:
    faulty.on("PATCH", UPLOAD, breaks_after(HALF))
    faulty.on("GET", UPLOAD, answers(204, Range=f"0-{'9' * 5000}"))
    assert await pushed(faulty) == (LAYER.digest, WHOLE)


async def test_headers_without_an_end_are_a_broken_connection(faulty: FaultyRegistry) -> None:
    faulty.on("POST", "uploads/$", answers(202, Location=f"/v2/{'x' * 100_000}"))
    assert await pushed(faulty) == (LAYER.digest, WHOLE)
    assert len(faulty.clock.pauses) == 1


# Redirects.


async def test_a_blob_on_another_host_is_fetched_without_the_credential(faulty: FaultyRegistry) -> None:
    repository = fresh_repository()
    async with faulty.client() as client, FaultyRegistry(faulty.registry).running() as other:
        await client.push_blob(repository, BytesBlob(WHOLE))
        other.on("GET", "/elsewhere", answers(200, WHOLE))
        faulty.on("GET", "/blobs/sha256", answers(307, Location=f"{other.address.origin}/elsewhere?signed=1"))
        with pytest.raises(RedirectRefused, match="which is not reached without TLS"):
            await fetched(client, repository, LAYER)
        client._transport._plain_http |= {other.address.host}
        faulty.on("GET", "/blobs/sha256", answers(307, Location=f"{other.address.origin}/elsewhere?signed=1"))
        assert await fetched(client, repository, LAYER) == WHOLE
    assert [(each.path, each.authorization) for each in other.seen] == [("/elsewhere?signed=1", "")]
    assert all(each.authorization for each in faulty.requests("GET", "/blobs/sha256"))


async def test_an_upload_that_goes_on_at_another_host_goes_there_without_the_credential(
    faulty: FaultyRegistry,
) -> None:
    repository = fresh_repository()
    async with faulty.client() as client, FaultyRegistry(faulty.registry).running() as other:
        client._transport._plain_http |= {other.address.host}
        other.on("PATCH", "/bucket", answers(403))
        await client.tags(repository)
        faulty.on("POST", "uploads/$", answers(202, Location=f"{other.address.origin}/bucket"))
        with pytest.raises(RegistryForbidden):
            await client.push_blob(repository, BytesBlob(WHOLE))
    assert {each.authorization for each in other.seen} == {""}


@pytest.mark.parametrize("host", ["another.example", "127.0.0.1:1"])
async def test_a_manifest_comes_from_the_registry_itself(faulty: FaultyRegistry, host: str) -> None:
    async with faulty.client() as client:
        faulty.on("GET", "/manifests/t", answers(307, Location=f"https://{host}/m"))
        with pytest.raises(RedirectRefused, match=f"another host, {host}, and only blobs may come from there"):
            await client.manifest("team/app", "t")


async def test_redirects_within_the_registry_are_followed_with_the_credential_and_not_for_ever(
    faulty: FaultyRegistry,
) -> None:
    repository = fresh_repository()
    async with faulty.client() as client:
        image = await push_image(client, repository, "t", FACTS, BytesBlob(b"x"))
        moved = f"/v2/{repository}/manifests/{quote(image.digest, safe='')}"
        faulty.on("GET", "/manifests/t", answers(302, Location=moved))
        assert sha256_digest(await client.manifest(repository, "t")) == image.digest
        faulty.on("GET", "/manifests/t", *[answers(302, Location=f"/v2/{repository}/manifests/t")] * 9)
        with pytest.raises(RedirectRefused, match="more than 5 times"):
            await client.manifest(repository, "t")
    assert all(each.authorization for each in faulty.requests("GET", "/manifests/"))


async def test_a_push_is_not_turned_into_another_request_by_a_redirect(faulty: FaultyRegistry) -> None:
    async with faulty.client() as client:
        faulty.on("PATCH", UPLOAD, answers(302, Location="/v2/elsewhere"))
        with pytest.raises(RedirectRefused, match="redirects a PATCH with 302"):
            await client.push_blob("team/app", BytesBlob(WHOLE))


# Downloads.


async def test_a_broken_download_goes_on_where_it_broke_and_pauses_without_progress(faulty: FaultyRegistry) -> None:
    repository = fresh_repository()
    async with faulty.client() as client:
        await client.push_blob(repository, BytesBlob(WHOLE))
        short = answers(200, WHOLE[:HALF], Content_Length=str(len(WHOLE)))
        faulty.on("GET", "/blobs/sha256", short, resets, resets)
        assert await fetched(client, repository, LAYER) == WHOLE
    assert len(faulty.requests("GET", "/blobs/sha256")) == 4


async def test_a_download_without_progress_ends_at_the_deadline(faulty: FaultyRegistry) -> None:
    repository = fresh_repository()
    async with faulty.client(for_s=60.0) as client:
        await client.push_blob(repository, BytesBlob(WHOLE))
        empty = answers(200, b"", Content_Length=str(len(WHOLE)))
        faulty.on("GET", "/blobs/sha256", *[empty] * 99)
        with pytest.raises(RegistryUnreachable, match="no time is left"):
            await fetched(client, repository, LAYER)
    assert len(faulty.requests("GET", "/blobs/sha256")) < 12
