"""What counts as a file of a checkpoint, and how a change is noticed."""

import hashlib
import os
import socket
from pathlib import Path

import pytest

from holdfast.checkpoints import files as contents
from holdfast.checkpoints.errors import Incomplete, UnsafeContent
from holdfast.checkpoints.files import ensure_unchanged, list_files, read_small_file, sha256_of
from tests.checkpoints.making import ODD, Oddity, await_tick, fill


def paths(folder: Path) -> list[str]:
    return [entry.path for entry in list_files(folder)]


def test_files_of_all_folders_are_found_and_holdfasts_own_are_not(tmp_path: Path) -> None:
    fill(tmp_path, {"b": b"", "a/c": b"1", "a/.hidden": b"", ".holdfast-manifest.json": b"", "a/.holdfast-x": b""})
    assert paths(tmp_path) == ["a/.hidden", "a/.holdfast-x", "a/c", "b"]


def test_links_in_the_folder_count_as_what_they_lead_to(tmp_path: Path) -> None:
    fill(tmp_path, {"step-5/model": b"12345"})
    (tmp_path / "latest").symlink_to("step-5")
    (tmp_path / "step-5" / "again").symlink_to("../step-5/model")
    found = {entry.path: entry.stamp.size for entry in list_files(tmp_path)}
    assert found == {"step-5/model": 5, "step-5/again": 5, "latest/model": 5, "latest/again": 5}


@pytest.mark.parametrize("target", ["/etc/hostname", "/etc", "../outside", "..", "../folder-2/file"])
def test_a_link_that_leaves_the_folder_is_refused(tmp_path: Path, target: str) -> None:
    fill(tmp_path, {"folder/file": b"", "outside": b"", "folder-2/file": b""})
    (tmp_path / "folder" / "link").symlink_to(target)
    with pytest.raises(UnsafeContent, match=r"link leads out of the checkpoint's folder: save a copy"):
        list_files(tmp_path / "folder")


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("gone")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UnsafeContent, match="leads nowhere"):
        list_files(tmp_path)


def test_a_link_to_a_folder_around_it_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, {"a/b/file": b""})
    (tmp_path / "a" / "b" / "up").symlink_to("../../a")
    with pytest.raises(UnsafeContent, match="a folder that holds it"):
        list_files(tmp_path)


def test_a_pipe_or_a_socket_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnsafeContent, match="neither a file nor a folder"):
        list_files(tmp_path)
    (tmp_path / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(UnsafeContent, match="neither a file nor a folder"):
            list_files(tmp_path)


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).touch()
    with pytest.raises(UnsafeContent, match="not valid UTF-8"):
        list_files(tmp_path)


def test_too_many_files_are_refused_without_looking_at_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "MAX_FILES", 3)
    monkeypatch.setattr("holdfast.checkpoints.manifest.MAX_FILES", 3)
    fill(tmp_path, {f"{number}": b"" for number in range(4)})
    with pytest.raises(UnsafeContent, match="more than 3 files"):
        list_files(tmp_path)


def test_a_folder_that_is_gone_is_incomplete(tmp_path: Path) -> None:
    with pytest.raises(Incomplete, match="being changed"):
        list_files(tmp_path / "gone")


@pytest.mark.parametrize("size", [0, 1, contents.CHUNK_BYTES - 1, contents.CHUNK_BYTES, contents.CHUNK_BYTES * 2 + 5])
def test_a_digest_is_that_of_the_whole_file(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(b"x" * size)
    assert sha256_of(tmp_path / "file") == hashlib.sha256(b"x" * size).hexdigest()


def test_every_change_is_noticed(tmp_path: Path) -> None:
    fill(tmp_path, {"file": b"1", "other": b"2"})
    before = list_files(tmp_path)
    ensure_unchanged(tmp_path, before)
    await_tick(tmp_path)
    (tmp_path / "file").write_bytes(b"2")
    with pytest.raises(Incomplete, match="was written to while it was read"):
        ensure_unchanged(tmp_path, before)
    before = list_files(tmp_path)
    (tmp_path / "more").touch()
    with pytest.raises(Incomplete):
        ensure_unchanged(tmp_path, before)
    before = list_files(tmp_path)
    (tmp_path / "other").unlink()
    with pytest.raises(Incomplete):
        ensure_unchanged(tmp_path, before)


def test_a_change_that_hides_behind_an_old_time_is_noticed(tmp_path: Path) -> None:
    fill(tmp_path, {"file": b"1"})
    os.utime(tmp_path / "file", (1, 1))
    before = list_files(tmp_path)
    await_tick(tmp_path)
    (tmp_path / "file").write_bytes(b"2")
    os.utime(tmp_path / "file", (1, 1))
    with pytest.raises(Incomplete):
        ensure_unchanged(tmp_path, before)


def test_a_file_of_holdfasts_own_is_read_up_to_a_byte_beyond_its_limit(tmp_path: Path) -> None:
    (tmp_path / "note").write_bytes(b"123456")
    assert read_small_file(tmp_path / "note", 6) == b"123456"
    assert read_small_file(tmp_path / "note", 3) == b"1234"
    assert read_small_file(tmp_path / "none", 3) is None


@pytest.mark.parametrize("odd", ODD)
def test_what_is_in_the_place_of_a_file_of_holdfasts_own_reads_as_empty(tmp_path: Path, odd: Oddity) -> None:
    odd(tmp_path / "note")
    assert read_small_file(tmp_path / "note", 100) == b""


def test_links_to_folders_without_files_are_walked_once(tmp_path: Path) -> None:
    """Two links in each of 30 folders to the next one: a billion ways lead to the last."""
    for number in range(30):
        (tmp_path / f"{number:02}").mkdir()
        for link in ("a", "b"):
            (tmp_path / f"{number:02}" / link).symlink_to(f"../{number + 1:02}")
    (tmp_path / "30").mkdir()
    assert list_files(tmp_path) == ()


def test_links_that_lead_to_folders_in_too_many_ways_are_refused(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}").mkdir()
        for link in ("a", "b"):
            (tmp_path / f"{number:02}" / link).symlink_to(f"../{number + 1:02}")
    fill(tmp_path / "30", {"file": b""})
    with pytest.raises(UnsafeContent, match="in more than 1000 ways: remove some"):
        list_files(tmp_path)


def test_folders_that_are_nested_too_deep_or_too_many_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "deep", {f"{'d/' * 32}file": b""})
    assert paths(tmp_path / "deep") == [f"{'d/' * 32}file"]
    fill(tmp_path / "deep", {f"{'d/' * 33}file": b""})
    with pytest.raises(UnsafeContent, match="more than 32 folders deep: nest them less"):
        list_files(tmp_path / "deep")
    monkeypatch.setattr("holdfast.checkpoints.manifest.MAX_FOLDERS", 3)
    fill(tmp_path / "wide", {f"{number}/file": b"" for number in range(3)})
    with pytest.raises(UnsafeContent, match="more than 3 folders"):
        list_files(tmp_path / "wide")
