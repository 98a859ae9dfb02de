"""A copy is there whole or not at all."""

import os
import shutil
import socket
from pathlib import Path

import pytest

from holdfast.sidecar import copying
from holdfast.sidecar.copying import copy, remove_leftovers
from tests.sidecar.volumes import checkpoint, tree


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkpoint(tmp_path, 0, "checkpoint-epoch-7")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "attempt-1").mkdir()
    return tmp_path / "attempt-1" / "checkpoint-epoch-7"


def test_files_folders_and_their_modes_are_copied(source: Path, target: Path) -> None:
    (source / "model.bin").chmod(0o640)
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "state").chmod(0o750)
    (source / "empty").mkdir()
    assert copy(source, target)
    assert tree(target) == tree(source)
    assert (target / "empty").is_dir()
    for path in ("model.bin", "run.sh", "state"):
        assert (target / path).stat().st_mode == (source / path).stat().st_mode
    assert [path.name for path in target.parent.iterdir()] == ["checkpoint-epoch-7"]


def test_what_is_written_to_the_original_later_does_not_change_the_copy(source: Path, target: Path) -> None:
    assert copy(source, target)
    with (source / "model.bin").open("a") as file:
        file.write(" of a worker that was cut off")
    assert (target / "model.bin").read_text() == "weights"


def test_files_larger_than_a_chunk_are_whole(source: Path, target: Path) -> None:
    content = os.urandom(copying.CHUNK_BYTES * 2 + 17)
    (source / "model.bin").write_bytes(content)
    assert copy(source, target)
    assert (target / "model.bin").read_bytes() == content


def test_inner_links_stay_links_and_others_become_the_file_they_lead_to(source: Path, target: Path) -> None:
    base = checkpoint(source.parents[1], 0, "checkpoint-epoch-6", {"base.bin": "base"})
    (source / "latest").symlink_to("state/position.json")
    (source / "itself").symlink_to(".")
    (source / "base").symlink_to(base / "base.bin")
    (source / "absolute").symlink_to(source / "model.bin")
    assert copy(source, target)
    found = tree(target)
    assert (found["latest"], found["itself"]) == ("-> state/position.json", "-> .")
    assert (found["base"], found["absolute"]) == ("base", "weights")


def test_a_checkpoint_that_is_a_link_is_copied_as_the_folder_it_leads_to(source: Path, target: Path) -> None:
    link = source.with_name("checkpoint-epoch-8")
    link.symlink_to(source.name)
    assert copy(link, target)
    assert not target.is_symlink()
    assert tree(target) == tree(source)


def test_what_is_neither_file_nor_folder_is_left_out(source: Path, target: Path) -> None:
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "s"))
        assert copy(source, target)
    assert sorted(path.name for path in target.iterdir()) == ["model.bin", "state"]


def test_a_folder_that_forbids_writing_can_be_copied_and_removed_again(source: Path, target: Path) -> None:
    (source / "state").chmod(0o500)
    assert copy(source, target)
    assert (target / "state").stat().st_mode & 0o777 == 0o700


def test_an_empty_folder_in_the_place_of_the_copy_is_replaced(source: Path, target: Path) -> None:
    target.mkdir()
    assert copy(source, target)
    assert tree(target) == tree(source)


def test_a_copy_that_fails_leaves_nothing(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(OSError, match="No space left"):
        copy(source, target)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("then", ["replaced", "gone"])
def test_a_source_that_is_replaced_or_taken_away_meanwhile_is_not_copied(
    source: Path, target: Path, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = copying.sync

    def meddle(path: Path) -> None:
        """An old worker's program puts another folder there while this one is being copied."""
        if source.exists() and path.name == "state":
            source.rename(source.with_name("old"))
            if then == "replaced":
                checkpoint(source.parents[1], 0, source.name, {"model.bin": "other weights"})
        original(path)

    monkeypatch.setattr(copying, "sync", meddle)
    assert not copy(source, target)
    assert list(target.parent.iterdir()) == []


def test_only_the_leftovers_of_copies_are_removed(source: Path, target: Path) -> None:
    left = target.with_name(f"{copying.RESTORING}{target.name}")
    (left / "deep").mkdir(parents=True)
    (left / "deep" / "model.bin").write_text("half")
    of_a_program = target.with_name(".checkpoint-epoch-8.partial")
    of_a_program.mkdir()
    remove_leftovers(target.parent)
    assert list(target.parent.iterdir()) == [of_a_program]
