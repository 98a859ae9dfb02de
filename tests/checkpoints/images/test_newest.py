"""The newest is the highest run of one owner's uid; what others have put into the repository is left alone."""

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoints.images.errors import ImageNotFound
from holdfast.checkpoints.images.image import build_image
from holdfast.checkpoints.images.newest import (
    BATCH,
    OwnedImage,
    batches_from_the_newest,
    expired_images,
    images_of,
    newest_run,
    owned_image,
    tagged_images,
    tags_by_run,
)
from tests.checkpoints.images.test_image import FACTS, LAYER


def image(run: int, *, uid: str = "uid-1", container: str = "main", digest: str = "") -> OwnedImage:
    digest = digest or f"sha256:{uid}-{container}-{run}"
    return OwnedImage(
        tag=f"{container}-{run}", digest=digest, owner_uid=uid, container=container, run=run, mode="container"
    )


class FakeRegistry:
    """A registry in memory that counts what it is asked for."""

    def __init__(self, manifests: Mapping[str, bytes]) -> None:
        self.manifests = dict(manifests)
        self.asked: list[str] = []
        self.gone: set[str] = set()

    async def tags(self, repository: str) -> list[str]:
        return list(self.manifests)

    async def manifest(self, repository: str, reference: str) -> bytes:
        self.asked.append(reference)
        if reference in self.gone:
            raise ImageNotFound(reference)
        return self.manifests[reference]


def manifest(run: int, uid: str = "uid-1") -> bytes:
    return build_image(msgspec.structs.replace(FACTS, run=run, owner_uid=uid), LAYER, LAYER.digest).manifest


async def test_ours_are_found_among_foreign_tags_and_manifests_without_our_labels() -> None:
    shelf = FakeRegistry(
        {
            "latest": manifest(99),
            "n-main-000010-20200101T000000Z": manifest(10),
            "n-main-000009-20300101T000000Z": manifest(9),
            "n-main-000011-20260101T000000Z": manifest(11, "uid-2"),
            "n-main-000012-20260101T000000Z": b'{"schemaVersion": 2, "manifests": []}',
            "n-main-000013-20260101T000000Z": b"garbage",
            "n-main-000016-20260101T000000Z": b'{"annotations": {"\xff": ""}}',
            "n-main-000017-20260101T000000Z": b'{"annotations":' + b"[" * 100_000,
            "n-main-000018-20260101T000000Z": manifest(18).replace(b'"18"', b'"' + b"9" * 5000 + b'"'),
            f"n-main-{'9' * 5000}-20260101T000000Z": manifest(19),
            "../n-main-000020-20260101T000000Z": manifest(20),
            "n-main-000014-20260101T000000Z": manifest(14),
            "m-main-000015-20260101T000000Z": manifest(15),
        }
        | {f"v1.{number}": b"{}" for number in range(10_000)}
    )
    shelf.gone.add("n-main-000014-20260101T000000Z")
    found = await images_of(shelf, "team/app", "uid-1", ["n-main"])
    assert [(one.run, one.container) for one in found] == [(9, "main"), (10, "main")]
    assert len(shelf.asked) == 9, "a manifest is asked for only if its tag is one of the owner's"
    assert found[0].labels["cpu-flags"] == "avx sse2"
    assert [one.run for one in newest_run(found, "uid-1")] == [10], "whatever the clocks said"
    assert [one.run for one in await images_of(shelf, "team/app", "uid-1")] == [9, 10, 15]


@pytest.mark.parametrize("value", ["x" * 10_000, "\x1b[2J", "two\nlines"])
def test_labels_that_are_no_words_for_a_message_are_passed_over(value: str) -> None:
    written = msgspec.json.decode(manifest(3))
    written["annotations"]["dev.holdfast.runtime"] = value
    found = owned_image("t", msgspec.json.encode(written))
    assert found is not None
    assert "runtime" not in found.labels
    written["annotations"]["dev.holdfast.container"] = value
    assert owned_image("t", msgspec.json.encode(written)) is None


async def test_of_ten_thousand_runs_only_the_newest_manifests_are_asked_for() -> None:
    shelf = FakeRegistry({f"n-main-{run:06d}-20260101T000000Z": manifest(run) for run in range(1, 10_001)})
    tags = await tags_by_run(shelf, "team/app", ["n-main"])
    first = next(batches_from_the_newest(tags))
    assert [one.run for one in newest_run(await tagged_images(shelf, "team/app", "uid-1", first), "uid-1")] == [10_000]
    assert len(shelf.asked) == BATCH
    assert [tag for batch in batches_from_the_newest(tags) for tag in batch] == sorted(shelf.manifests, reverse=True)


def test_a_batch_has_whole_runs() -> None:
    tags = {run: [f"{run}-{number}" for number in range(30)] for run in (3, 1, 2)}
    assert [len(batch) for batch in batches_from_the_newest(tags)] == [60, 30]
    assert next(batches_from_the_newest(tags))[0] == "3-0"
    assert list(batches_from_the_newest({})) == []


@pytest.mark.parametrize("name", ["owner-uid", "run", "container", "mode"])
def test_a_manifest_that_lacks_one_of_our_labels_is_not_ours(name: str) -> None:
    found = msgspec.json.decode(manifest(3))
    assert owned_image("t", manifest(3)) is not None
    del found["annotations"][f"dev.holdfast.{name}"]
    assert owned_image("t", msgspec.json.encode(found)) is None


def test_a_run_without_all_its_containers_is_not_the_newest_and_does_not_count_for_retention() -> None:
    both = [image(run, container=name) for run in (1, 2, 3) for name in ("main", "side")]
    half = [image(4), image(5), image(6)]
    assert {one.run for one in newest_run([*both, *half], "uid-1", ["main", "side"])} == {3}
    assert {one.run for one in newest_run([*both, *half], "uid-1")} == {6}
    assert [one.run for one in expired_images([*both, *half], "uid-1", 2, ["main", "side"])] == [1, 1]
    assert newest_run([], "uid-1") == ()


def test_half_a_run_that_is_older_than_what_is_retained_expires_too() -> None:
    found = expired_images([image(1), image(2, container="side"), image(3), image(4)], "uid-1", 1, ["main"])
    assert [one.run for one in found] == [1, 2, 3]


def test_a_digest_that_a_retained_image_has_is_not_deleted() -> None:
    assert expired_images([image(1, digest="same"), image(2, digest="same")], "uid-1", 1) == ()


@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from(["uid-1", "uid-2"]))), st.integers(0, 10))
def test_the_newest_runs_of_one_owner_are_retained(made: list[tuple[int, str]], retain: int) -> None:
    images = [image(run, uid=uid) for run, uid in dict.fromkeys(made)]
    old = expired_images(images, "uid-1", retain)
    runs = sorted(one.run for one in images if one.owner_uid == "uid-1")
    assert [one.run for one in old] == (runs[:-retain] if retain else [])
    assert all(one.owner_uid == "uid-1" for one in old)
    assert all(one not in old for one in newest_run(images, "uid-1"))
