"""Which checkpoint counts, and which does not."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.sidecar.checkpoints import attempt_of, attempts, escaping, newest_first
from holdfast.train.markers import Save, shard_name, write
from tests.sidecar.volumes import checkpoint


def names(root: Path, until: int = 9) -> list[str]:
    return [str(found) for found in newest_first(root, until)]


def test_the_highest_epoch_is_the_newest_whichever_attempt_made_it(tmp_path: Path) -> None:
    checkpoint(tmp_path, 0, "checkpoint-epoch-9")
    checkpoint(tmp_path, 0, "checkpoint-epoch-10")
    checkpoint(tmp_path, 1, "checkpoint-epoch-2")
    assert names(tmp_path) == [
        "checkpoint-epoch-10 of attempt 0",
        "checkpoint-epoch-9 of attempt 0",
        "checkpoint-epoch-2 of attempt 1",
    ]


def test_of_the_same_epoch_the_later_attempts_is_the_newest(tmp_path: Path) -> None:
    for attempt in (2, 10, 1):
        checkpoint(tmp_path, attempt, "checkpoint-epoch-4")
    assert names(tmp_path, until=10)[0] == "checkpoint-epoch-4 of attempt 10"


def test_a_later_attempt_than_the_own_does_not_count(tmp_path: Path) -> None:
    checkpoint(tmp_path, 1, "checkpoint-epoch-1")
    checkpoint(tmp_path, 2, "checkpoint-epoch-2")
    assert names(tmp_path, until=1) == ["checkpoint-epoch-1 of attempt 1"]


@pytest.mark.parametrize(
    "name",
    [
        ".checkpoint-epoch-5",
        "checkpoint-epoch-5.tmp",
        "checkpoint-epoch-5.partial",
        "checkpoint-epoch-5.incomplete",
        "checkpoint-epoch-5-old",
        "checkpoint-epoch-",
        "checkpoint-epoch--5",
        "checkpoint-epoch-\N{ARABIC-INDIC DIGIT FIVE}",
        "checkpoint-epoch-5\n",
        "checkpoint-epoch-" + "9" * 19,
        "Checkpoint-Epoch-5",
        "checkpoint-step-5",
    ],
)
def test_a_folder_of_another_name_does_not_count(tmp_path: Path, name: str) -> None:
    checkpoint(tmp_path, 0, name)
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["attempt", "attempt-", "attempt-x", "attempt-0.resume", ".attempt-0", "tensorboard"])
def test_what_is_in_no_attempts_folder_does_not_count(tmp_path: Path, name: str) -> None:
    checkpoint(tmp_path, 0, "checkpoint-epoch-5").parent.rename(tmp_path / name)
    assert names(tmp_path) == []
    assert attempt_of(tmp_path / name) is None


def test_an_empty_folder_or_a_file_does_not_count(tmp_path: Path) -> None:
    checkpoint(tmp_path, 0, "checkpoint-epoch-5", files={})
    (tmp_path / "attempt-0" / "checkpoint-epoch-6").write_text("weights")
    (tmp_path / "attempt-1").write_text("no folder at all")
    assert names(tmp_path) == []


def test_a_checkpoint_that_lacks_declared_shards_does_not_count(tmp_path: Path) -> None:
    save = Save(attempt=0, restart=0, epoch=2, step=None)
    checkpoint(tmp_path, 0, "checkpoint-epoch-1")
    folder = checkpoint(tmp_path, 0, "checkpoint-epoch-2")
    for rank, newest in ((0, "checkpoint-epoch-1"), (1, "checkpoint-epoch-2")):
        write(folder / shard_name(rank), save, shards=2, rank=rank)
        assert newest_first(tmp_path, 9)[0].folder.name == newest


def test_a_link_that_leads_nowhere_or_to_itself_does_not_count(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 0, "checkpoint-epoch-1").parent
    (folder / "checkpoint-epoch-8").symlink_to("gone")
    (folder / "checkpoint-epoch-9").symlink_to("checkpoint-epoch-9")
    (tmp_path / "attempt-1").symlink_to("attempt-1")
    assert names(tmp_path) == ["checkpoint-epoch-1 of attempt 0"]


@settings(deadline=None)  # disks take their time
@given(st.sets(st.tuples(st.integers(0, 10**9), st.integers(0, 9)), min_size=1, max_size=12))
def test_the_order_is_by_epoch_and_then_by_attempt(made: set[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        for epoch, attempt in made:
            checkpoint(Path(root), attempt, f"checkpoint-epoch-{epoch}", {"model.bin": ""})
        assert [(found.epoch, found.attempt) for found in newest_first(Path(root), 9)] == sorted(made, reverse=True)


def test_the_attempts_are_found_by_their_numbers(tmp_path: Path) -> None:
    for name in ("attempt-0", "attempt-2", "attempt-10", "attempt-3.resume", "lost+found"):
        (tmp_path / name).mkdir()
    assert sorted(attempts(tmp_path, 9)) == [(0, tmp_path / "attempt-0"), (2, tmp_path / "attempt-2")]


def test_links_that_stay_below_the_root_are_in_order(tmp_path: Path) -> None:
    other = checkpoint(tmp_path, 0, "checkpoint-epoch-1")
    folder = checkpoint(tmp_path, 0, "checkpoint-epoch-2")
    (folder / "latest").symlink_to("model.bin")
    (folder / "state" / "model").symlink_to("../model.bin")
    (folder / "folder").symlink_to("state")
    (folder / "shared").symlink_to(os.path.relpath(other / "model.bin", folder))
    (folder / "absolute").symlink_to(other / "model.bin")
    (folder / "later").symlink_to("not-written-yet")
    (folder / "state" / "above").symlink_to("..")
    assert escaping(folder, tmp_path) is None
    (tmp_path / "attempt-0" / "checkpoint-epoch-3").symlink_to("checkpoint-epoch-2")
    assert escaping(tmp_path / "attempt-0" / "checkpoint-epoch-3", tmp_path) is None


@pytest.mark.parametrize(
    "target",
    ["/etc/passwd", "/nowhere", "../../../../outside/secret", "../../../../outside", "../..", "../../gone", "../../.."],
)
def test_a_link_that_leads_out_or_to_another_folder_is_named(tmp_path: Path, target: str) -> None:
    root = tmp_path / "root"
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    folder = checkpoint(root, 0, "checkpoint-epoch-2")
    link = folder / "state" / "link"
    link.symlink_to(target)
    assert escaping(folder, root) == link


def test_a_checkpoint_or_an_attempt_that_is_a_link_out_of_the_root_is_named(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    folder = checkpoint(outside, 0, "checkpoint-epoch-2")
    (root / "attempt-0").mkdir(parents=True)
    (root / "attempt-0" / "checkpoint-epoch-9").symlink_to(folder)
    (root / "attempt-1").symlink_to(outside / "attempt-0")
    found = newest_first(root, 1)
    assert [str(each) for each in found] == ["checkpoint-epoch-9 of attempt 0", "checkpoint-epoch-2 of attempt 1"]
    assert [escaping(each.folder, root) for each in found] == [each.folder for each in found]
