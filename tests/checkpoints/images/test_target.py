"""Where the image of a container goes."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.checkpoints.images.errors import InvalidImageReference
from holdfast.checkpoints.images.target import target_image

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def backup(image: str | None = None, url: str = "r.example:5000") -> CheckpointBackup:
    container: dict[str, Any] = {"name": "trainer", **({"image": image} if image else {})}
    spec = {
        "schedule": "immediately",
        "podRef": {"name": "numbers"},
        "registry": {"url": url, "repository": "team/checkpoints"},
        "containers": [container],
    }
    return msgspec.convert({"metadata": {"name": "nightly", "namespace": "team"}, "spec": spec}, CheckpointBackup)


@pytest.mark.parametrize(
    ("image", "target"),
    [
        (None, "r.example:5000/team/checkpoints:nightly-trainer-000007-20260102T030405Z"),
        ("r.example:5000/other", "r.example:5000/other:nightly-trainer-000007-20260102T030405Z"),
        ("r.example:5000/other:mine", "r.example:5000/other:mine"),
    ],
)
def test_a_run_has_a_tag_of_its_own_unless_the_backup_writes_one(image: str | None, target: str) -> None:
    assert str(target_image(backup(image), "trainer", 7, AT)) == target


@pytest.mark.parametrize("image", ["other.example/x", "r.example:5000/x@sha256:" + "ab" * 32])
def test_another_host_or_a_digest_is_refused(image: str) -> None:
    with pytest.raises(InvalidImageReference, match="of container trainer"):
        target_image(backup(image), "trainer", 7, AT)


@pytest.mark.parametrize("url", ["https://r.example:5000/", "http://r.example:5000"])
def test_the_host_is_that_of_the_url(url: str) -> None:
    assert target_image(backup(url=url), "trainer", 7, AT).host == "r.example:5000"
