"""Lines that another process appends, in whatever pieces they come."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.sidecar.progress import LINE_BYTES, READ_BYTES, Tail


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "progress.jsonl"


def append(file: Path, content: bytes) -> None:
    with file.open("ab") as opened:
        opened.write(content)


def everything(tail: Tail) -> list[bytes]:
    found: list[bytes] = []
    while lines := tail.lines():
        found += lines
    return found


def test_a_file_that_comes_later_is_read_from_its_beginning(file: Path) -> None:
    tail = Tail(file)
    assert tail.lines() == []
    append(file, b"one\ntwo\n")
    assert tail.lines() == [b"one", b"two"]
    assert tail.lines() == []
    tail.close()


def test_half_a_line_is_kept_until_its_end_comes(file: Path) -> None:
    tail = Tail(file)
    append(file, b'{"epoch"')
    assert tail.lines() == []
    append(file, b": 1}\n\n  \nnext")
    assert tail.lines() == [b'{"epoch": 1}']
    tail.close()


def test_a_truncated_file_is_read_from_its_beginning(file: Path) -> None:
    tail = Tail(file)
    append(file, b"one\ntwo\nhalf")
    tail.lines()
    file.write_bytes(b"new\n")
    assert tail.lines() == [b"new"]
    tail.close()


def test_a_file_that_is_replaced_is_read_to_its_end_first(file: Path, tmp_path: Path) -> None:
    tail = Tail(file)
    append(file, b"one\n")
    assert tail.lines() == [b"one"]
    append(file, b"two\n")
    file.rename(tmp_path / "progress.jsonl.1")
    append(file, b"three\n")
    assert everything(tail) == [b"two", b"three"]
    tail.close()


def test_a_file_that_is_removed_and_made_anew_is_followed(file: Path) -> None:
    tail = Tail(file)
    append(file, b"one\n")
    assert tail.lines() == [b"one"]
    file.unlink()
    assert tail.lines() == []
    append(file, b"two\n")
    assert tail.lines() == [b"two"]
    tail.close()


def test_a_line_that_no_report_could_hold_is_counted_and_passed_over(file: Path) -> None:
    tail = Tail(file)
    append(file, b"a" * (LINE_BYTES + 1) + b"\nshort\n")
    assert everything(tail) == [b"short"]
    assert tail.too_long == 1
    append(file, b"b" * (READ_BYTES * 2))
    assert tail.lines() == tail.lines() == []
    append(file, b"the end of it\nshort again\n")
    assert everything(tail) == [b"short again"]
    assert tail.too_long == 2
    tail.close()


def test_a_pipe_or_a_folder_is_no_file_and_nobody_waits_for_it(file: Path) -> None:
    os.mkfifo(file)
    assert Tail(file).lines() == []
    file.unlink()
    file.mkdir()
    assert Tail(file).lines() == []


@settings(deadline=None)  # disks take their time
@given(st.lists(st.binary(max_size=30), max_size=20))
def test_whatever_the_pieces_the_lines_are_those_of_the_whole(pieces: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "progress")
        tail = Tail(file)
        found: list[bytes] = []
        for piece in pieces:
            append(file, piece)
            found += tail.lines()
        tail.close()
    assert found == [line for line in b"".join(pieces).split(b"\n")[:-1] if line.strip()]
