"""The file that the objects live in: one SQLite table, written in transactions that are on disk when they return."""

import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from holdfast.cluster.embedded.examination import APPLICATION_ID, LAYOUT, check_database, unopened
from holdfast.cluster.errors import ServerError

_TABLES = """
CREATE TABLE objects (
    resource TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    body BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (resource, namespace, name)
);
CREATE TABLE clock (version INTEGER NOT NULL);
INSERT INTO clock VALUES (0);
"""
_PUT = "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)"
_REMOVE = "DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?"


class Row(NamedTuple):
    """One object as it is filed; `body` is None when it is removed."""

    resource: str
    namespace: str
    name: str
    body: bytes | None


class Storage:
    """An open database, locked against every other process; without a path it is in memory and ends with us."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
            check_database(path)
            _touch(path)
        try:
            self._db = _opened(str(path or ":memory:"))
        except sqlite3.OperationalError as error:
            raise unopened(path or Path(":memory:"), error) from error

    def load(self) -> tuple[int, list[Row]]:
        """The version of the last write, and every object."""
        ((version,),) = self._db.execute("SELECT version FROM clock")
        return version, [Row(*row) for row in self._db.execute("SELECT resource, namespace, name, body FROM objects")]

    def commit(self, version: int, rows: Iterable[Row]) -> None:
        """All of it or nothing; `ServerError` when the disk refuses."""
        try:
            self._db.execute("BEGIN")
            for row in rows:
                self._file(row)
            self._db.execute("UPDATE clock SET version = ?", (version,))
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            where = self._path or "the database in memory"
            raise ServerError(f"{where} can't be written: {error}; make room on its disk and try again") from error

    def close(self) -> None:
        self._db.close()

    def _file(self, row: Row) -> None:
        if row.body is None:
            self._db.execute(_REMOVE, row[:3])
        else:
            self._db.execute(_PUT, (*row, crc32(row.body)))

    def _roll_back(self) -> None:
        # After a full disk SQLite may have rolled back by itself already.
        with suppress(sqlite3.Error):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")


def _touch(path: Path) -> None:
    """Secrets are filed here: the file is its owner's alone, and SQLite gives its log the same mode."""
    try:
        path.touch(mode=0o600)
    except OSError as error:
        raise unopened(path, error) from error


def _opened(name: str) -> sqlite3.Connection:
    db = sqlite3.connect(name, timeout=0, isolation_level=None)
    try:
        # Held from the first access until close, and freed by the kernel when we die.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            signed = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {LAYOUT};"
            db.executescript(f"BEGIN; {_TABLES} {signed} COMMIT;")
        # Write-ahead: a commit is one append and one fsync. FULL: that fsync comes before the answer.
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
    except BaseException:
        db.close()
        raise
    return db
