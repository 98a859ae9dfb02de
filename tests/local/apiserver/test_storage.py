"""The database file: what it keeps, and what it refuses without changing a byte."""

import os
import sqlite3
import stat
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.local.apiserver.storage import APPLICATION_ID, LAYOUT, DatabaseUnusable, Row, Storage

PAGE = 4096


def row(name: str, body: bytes | None = b"{}") -> Row:
    return Row("configmaps", "default", name, body)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "objects.db"


def filled(path: Path, bodies: int = 50) -> None:
    with closing(Storage(path)) as storage:
        storage.commit(7, [row(f"c{number}", b'{"text": "%s"}' % (b"x" * 500)) for number in range(bodies)])


def contents(path: Path) -> dict[str, bytes]:
    """Every file of the database but the index that readers rebuild, and empty ones."""
    files = {each.name: each.read_bytes() for each in path.parent.iterdir() if not each.name.endswith("-shm")}
    return {name: content for name, content in files.items() if content}


def test_what_was_committed_is_there_after_reopening(path: Path) -> None:
    with closing(Storage(path)) as storage:
        storage.commit(3, [row("a", b"1"), row("b", b"2")])
        storage.commit(5, [row("a", b"3"), row("b", None), row("missing", None)])
    with closing(Storage(path)) as storage:
        assert storage.load() == (5, [row("a", b"3")])


def test_a_new_file_is_empty_at_version_zero(path: Path) -> None:
    with closing(Storage(path)) as storage:
        assert storage.load() == (0, [])


def test_an_empty_file_is_a_new_one(path: Path) -> None:
    path.touch()
    with closing(Storage(path)) as storage:
        assert storage.load() == (0, [])


def test_without_a_path_nothing_is_shared() -> None:
    with closing(Storage(None)) as one, closing(Storage(None)) as other:
        one.commit(1, [row("a")])
        assert other.load() == (0, [])


def test_a_second_opening_is_refused_while_the_first_lasts(path: Path) -> None:
    with closing(Storage(path)) as first:
        first.commit(1, [row("a")])
        with pytest.raises(DatabaseUnusable, match="in use by another process: stop that one"):
            Storage(path)
        first.commit(2, [row("b")])
    with closing(Storage(path)) as storage:
        assert len(storage.load()[1]) == 2


def test_an_opening_in_another_process_is_refused(path: Path) -> None:
    script = (
        "import sys, pathlib; from holdfast.local.apiserver.storage import Storage; Storage(pathlib.Path(sys.argv[1]))"
    )
    with closing(Storage(path)) as first:
        first.commit(1, [row("a")])
        other = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
    assert other.returncode != 0
    assert f"{path} is in use by another process" in other.stderr


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("# notes\n" * 1000)
    before = contents(path)
    with pytest.raises(DatabaseUnusable, match=rf"{path} is damaged .*nothing was changed: put a backup in its place"):
        Storage(path)
    assert contents(path) == before


def test_a_cut_file_is_refused_and_left_alone(path: Path) -> None:
    filled(path)
    os.truncate(path, path.stat().st_size // 2)
    before = contents(path)
    with pytest.raises(DatabaseUnusable, match="is damaged"):
        Storage(path)
    assert contents(path) == before


def test_an_overwritten_page_is_refused_and_left_alone_wherever_it_is(path: Path) -> None:
    filled(path)
    sound = path.read_bytes()
    for at in range(0, len(sound), PAGE):
        damaged = sound[:at] + bytes(byte ^ 0xFF for byte in sound[at : at + PAGE]) + sound[at + PAGE :]
        path.write_bytes(damaged)
        with pytest.raises(DatabaseUnusable, match="is damaged"):
            Storage(path)
        assert path.read_bytes() == damaged


def test_a_single_changed_byte_in_an_object_is_noticed(path: Path) -> None:
    filled(path)
    whole = path.read_bytes()
    at = whole.rindex(b"xxxx")
    path.write_bytes(whole[:at] + b"y" + whole[at + 1 :])
    with pytest.raises(DatabaseUnusable, match=r"configmaps default/c\d+ is not what was written"):
        Storage(path)


def test_an_emptied_file_beside_its_log_is_refused(path: Path) -> None:
    path.touch()
    path.with_name("objects.db-wal").write_bytes(b"not nothing")
    before = contents(path)
    with pytest.raises(DatabaseUnusable, match="it is empty, and its write-ahead log is not"):
        Storage(path)
    assert contents(path) == before


CRASH = """
    import os, pathlib, sys
    from holdfast.local.apiserver.storage import Row, Storage

    storage = Storage(pathlib.Path(sys.argv[1]))
    storage.commit(8, [Row("configmaps", "default", "late", b"x" * 1000)])
    os._exit(0)
"""


def test_a_damaged_file_keeps_its_log_too(path: Path) -> None:
    filled(path)
    subprocess.run([sys.executable, "-c", textwrap.dedent(CRASH), path], check=True)
    assert path.with_name("objects.db-wal").stat().st_size > 0
    sound = path.read_bytes()
    path.write_bytes(sound.replace(b"xxxx", b"yyyy"))
    before = contents(path)
    with pytest.raises(DatabaseUnusable, match="is damaged"):
        Storage(path)
    assert contents(path) == before
    path.write_bytes(sound)
    with closing(Storage(path)) as storage:
        assert "late" in {each.name for each in storage.load()[1]}


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE notes (text)")
    before = contents(path)
    with pytest.raises(DatabaseUnusable, match="is a database, but not holdfast's"):
        Storage(path)
    assert contents(path) == before


def test_a_newer_layout_is_refused_and_left_alone(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {LAYOUT + 1}")
    before = contents(path)
    with pytest.raises(DatabaseUnusable, match="was written by a newer holdfast"):
        Storage(path)
    assert contents(path) == before


def test_the_file_says_whose_it_is(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)


def test_the_file_is_its_owners_alone(path: Path) -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(CRASH), path], check=True)
    modes = {each.name: stat.filemode(each.stat().st_mode) for each in path.parent.iterdir()}
    assert modes == {"objects.db": "-rw-------", "objects.db-wal": "-rw-------"}


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere" / "objects.db"
    with pytest.raises(DatabaseUnusable, match=rf"{missing} can't be opened: .*check that its folder exists"):
        Storage(missing)


def test_a_folder_in_the_files_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnusable, match=str(tmp_path)):
        Storage(tmp_path)


FULL_DISK = """
    import pathlib, resource, sys
    from holdfast.cluster.errors import ServerError
    from holdfast.local.apiserver.storage import Row, Storage

    storage = Storage(pathlib.Path(sys.argv[1]))
    storage.commit(1, [Row("configmaps", "default", "first", b"1")])
    # No file may grow beyond this: the kernel refuses as it does when the disk is full.
    size = max(each.stat().st_size for each in pathlib.Path(sys.argv[1]).parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        storage.commit(2, [Row("configmaps", "default", f"big{n}", b"x" * 10_000) for n in range(100)])
    except ServerError as error:
        print(error)
    version, rows = storage.load()
    print(version, [row.name for row in rows])
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    storage.commit(3, [Row("configmaps", "default", "second", b"2")])
    storage.close()
"""


def test_a_full_disk_refuses_the_write_and_keeps_the_rest(path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL_DISK), path], capture_output=True, text=True, check=True
    )
    refusal, state = run.stdout.splitlines()
    assert refusal.startswith(f"{path} can't be written: ")
    assert refusal.endswith("make room on its disk and try again")
    assert state == "1 ['first']"
    with closing(Storage(path)) as storage:
        version, rows = storage.load()
        assert (version, [each.name for each in rows]) == (3, ["first", "second"])
