"""Names of images are taken apart and put together; a run's tag sorts by run and fits into what registries allow."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoints.images.errors import InvalidImageReference, PlainHttpRefused
from holdfast.checkpoints.images.reference import (
    TAG,
    ImageReference,
    parse_reference,
    parse_run_tag,
    registry_address,
    run_tag,
    tag_prefix,
)

DIGEST = f"sha256:{'0a' * 32}"
AT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gcr.io/team/app", ImageReference(host="gcr.io", repository="team/app")),
        ("Gcr.io/app:v1", ImageReference(host="gcr.io", repository="app", tag="v1")),
        ("localhost:5000/a__b/c-d:X_1", ImageReference(host="localhost:5000", repository="a__b/c-d", tag="X_1")),
        (f"[::1]:5000/app@{DIGEST}", ImageReference(host="[::1]:5000", repository="app", digest=DIGEST)),
        (f"r.example/a:b@{DIGEST}", ImageReference(host="r.example", repository="a", tag="b", digest=DIGEST)),
    ],
)
def test_a_full_name_is_taken_apart(text: str, expected: ImageReference) -> None:
    assert parse_reference(text) == expected
    assert parse_reference(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "app",
        "team/app",
        "gcr.io/",
        "gcr.io/App",
        "gcr.io/app:",
        "gcr.io/app:-x",
        "gcr.io/app@sha256:1",
        "r.io/a@",
        "gcr.io/../etc",
        "gcr.io/a//b",
        "gcr.io/a b",
        "gcr.io:port/a",
        "gcr.io:65536/a",
        "[::g]/a",
        "[:]:5000/a",
        f"gcr.io/{'a' * 256}",
        f"gcr.io/a:{'t' * 129}",
    ],
)
def test_what_names_no_image_is_refused(text: str) -> None:
    with pytest.raises(InvalidImageReference):
        parse_reference(text)


def test_a_restored_pod_names_the_image_by_digest_alone() -> None:
    assert str(parse_reference("r.example/a:b").by_digest(DIGEST)) == f"r.example/a@{DIGEST}"


def test_a_registry_is_reached_over_tls() -> None:
    assert registry_address("gcr.io") == ("gcr.io", "https://gcr.io")
    assert registry_address("https://r.example:5000/") == ("r.example:5000", "https://r.example:5000")
    assert registry_address("docker.io") == ("docker.io", "https://registry-1.docker.io")


def test_plain_http_is_for_listed_registries_alone() -> None:
    assert registry_address("http://r.example:5000", ["r.example:5000"]).origin == "http://r.example:5000"
    assert registry_address("r.example:5000", ["r.example:5000"]).origin == "http://r.example:5000"
    assert registry_address("https://r.example:5000", ["r.example:5000"]).origin == "https://r.example:5000"
    with pytest.raises(PlainHttpRefused, match=r"list r\.example:5001"):
        registry_address("http://r.example:5001", ["r.example:5000"])
    with pytest.raises(InvalidImageReference, match="scheme ftp"):
        registry_address("ftp://r.example")
    with pytest.raises(InvalidImageReference):
        registry_address("https://user:password@r.example")


def test_the_tag_of_a_run_has_name_container_run_and_time_in_utc() -> None:
    at = AT.astimezone(timezone(timedelta(hours=2)))
    assert run_tag("numbers", "main", 7, at) == "numbers-main-000007-20260304T050607Z"
    assert parse_run_tag("numbers-main-000007-20260304T050607Z") == ("numbers-main", 7, "20260304T050607Z")


@pytest.mark.parametrize("tag", ["latest", "v1.2", "numbers-main-7-20260304T050607Z", "-000007-20260304T050607Z", ""])
def test_other_tags_are_not_taken_for_those_of_a_run(tag: str) -> None:
    assert parse_run_tag(tag) is None


_NAME = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", fullmatch=True)
_CONTAINER = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)


@given(_NAME, _CONTAINER, st.integers(0, 9_999_999_999))
def test_every_tag_is_allowed_and_read_back(name: str, container: str, run: int) -> None:
    tag = run_tag(name, container, run, AT)
    assert TAG.fullmatch(tag)
    assert parse_run_tag(tag) == (tag_prefix(name, container), run, "20260304T050607Z")


def test_long_names_that_differ_at_their_end_have_different_tags() -> None:
    one, other = (tag_prefix("n" * 200 + end, "main") for end in "ab")
    assert one != other
    assert tag_prefix("a-b", "c") == tag_prefix("a", "b-c"), "told apart by the owner's uid, not by the tag"


@given(st.lists(st.integers(0, 999_999), min_size=2))
def test_tags_sorted_by_name_are_sorted_by_run(runs: list[int]) -> None:
    assert sorted(run_tag("a", "b", run, AT) for run in runs) == [run_tag("a", "b", run, AT) for run in sorted(runs)]
