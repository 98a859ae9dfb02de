"""The database of the objects: one SQLite table, written in transactions that are on disk when they return."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from msgspec import Struct

from holdfast.api.meta import Key, ObjectMeta
from holdfast.cluster.errors import ClusterError, ServerError
from holdfast.cluster.protocol import JSON, Change

# Checks of a database file before it is opened for writing.
#
# Opening for writing already changes the file (the write-ahead log is merged in). A damaged file must stay as it was
# found, for a person or a backup tool to work on.

# "hfst": distinguishes a holdfast database from another program's file.
APPLICATION_ID = 0x68667374
LAYOUT = 1


class DatabaseUnusable(ClusterError):
    """The database file can't be used; it is left as it was found."""


def check_database(path: Path) -> None:
    """Raise `DatabaseUnusable` unless the file is absent, empty, or a sound holdfast database."""
    if not _has_content(path):
        if _has_content(path.with_name(f"{path.name}-wal")):
            raise damaged(path, "it is empty, and its write-ahead log is not")
        return
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)) as db:
            _check_format(path, db)
            _check_content(path, db)
    except sqlite3.OperationalError as error:
        raise unopened(path, error) from error
    except sqlite3.DatabaseError as error:
        raise damaged(path, str(error)) from error


def _check_format(path: Path, db: sqlite3.Connection) -> None:
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and _pragma(db, "application_id") != APPLICATION_ID:
        raise DatabaseUnusable(f"{path} is a database, but not holdfast's: name another file or folder")
    if _pragma(db, "user_version") > LAYOUT:
        raise DatabaseUnusable(f"{path} was written by a newer holdfast: use that one, or name another folder")


def _check_content(path: Path, db: sqlite3.Connection) -> None:
    problem = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise damaged(path, " ".join(problem.split()))
    # SQLite stores no checksums of its pages.
    for resource, namespace, name, body, checksum in db.execute("SELECT * FROM objects"):
        if crc32(body) != checksum:
            raise damaged(path, f"{resource} {namespace}/{name} is not what was written")


def damaged(path: Path, what: str) -> DatabaseUnusable:
    return DatabaseUnusable(
        f"{path} is damaged ({what}); nothing was changed: put a backup in its place, or move it and its -wal file "
        "away to start empty"
    )


def unopened(path: Path, error: sqlite3.OperationalError | OSError) -> DatabaseUnusable:
    busy = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode in busy:
        return DatabaseUnusable(f"{path} is in use by another process: stop that one, or name another folder")
    return DatabaseUnusable(f"{path} can't be opened: {error}; check that its folder exists and is writable")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    value: int = db.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


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
    """One object as a database row; `body` is None when the object is removed."""

    resource: str
    namespace: str
    name: str
    body: bytes | None


class Storage:
    """An open database, locked against every other process; without a path it is in memory only."""

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
        """Write all rows or none; `ServerError` when the disk fails."""
        try:
            self._db.execute("BEGIN")
            for row in rows:
                self._write(row)
            self._db.execute("UPDATE clock SET version = ?", (version,))
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            where = self._path or "the database in memory"
            raise ServerError(f"{where} can't be written: {error}; make room on its disk and try again") from error

    def close(self) -> None:
        self._db.close()

    def _write(self, row: Row) -> None:
        if row.body is None:
            self._db.execute(_REMOVE, row[:3])
        else:
            self._db.execute(_PUT, (*row, crc32(row.body)))

    def _roll_back(self) -> None:
        # After a full disk SQLite may already have rolled back by itself.
        with suppress(sqlite3.Error):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")


def _touch(path: Path) -> None:
    """Secrets are stored here, so only the owner may read the file; SQLite gives its log the same mode."""
    try:
        path.touch(mode=0o600)
    except OSError as error:
        raise unopened(path, error) from error


def _opened(name: str) -> sqlite3.Connection:
    db = sqlite3.connect(name, timeout=0, isolation_level=None)
    try:
        # Locked from the first access until close; the kernel frees the lock when the process dies.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            header = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {LAYOUT};"
            db.executescript(f"BEGIN; {_TABLES} {header} COMMIT;")
        # WAL: a commit is one append and one fsync. FULL: the fsync comes before the response.
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
    except BaseException:
        db.close()
        raise
    return db


# A stored object: its JSON text, and the few fields that are read often.

# Sorted keys: two objects are equal exactly when their JSON texts are equal.
_encode = msgspec.json.Encoder(order="sorted").encode


class StoredObject(Struct, frozen=True, kw_only=True, gc=False):
    """`body` is authoritative; every reader decodes its own copy, so that no reader can change another's."""

    resource: str
    version: int
    api_version: str
    meta: ObjectMeta
    body: bytes

    @property
    def key(self) -> Key:
        return self.meta.key

    def json(self) -> JSON:
        decoded: JSON = msgspec.json.decode(self.body)
        return decoded


class StoredWrite(Struct, frozen=True, kw_only=True, gc=False):
    """One write: the object before it and after it; for a removal, `new` is the last state."""

    change: Change
    old: StoredObject | None
    new: StoredObject

    @property
    def version(self) -> int:
        return self.new.version


class _Header(Struct, rename="camel"):
    api_version: str
    metadata: ObjectMeta


def stored(resource: str, draft: JSON, version: int) -> StoredObject:
    """`draft` as stored at `version`, which becomes its resourceVersion."""
    return loaded(resource, _encode({**draft, "metadata": {**draft["metadata"], "resourceVersion": str(version)}}))


def loaded(resource: str, body: bytes) -> StoredObject:
    """The object with this JSON text."""
    header = msgspec.json.decode(body, type=_Header)
    return StoredObject(
        resource=resource,
        version=int(header.metadata.resource_version),
        api_version=header.api_version,
        meta=header.metadata,
        body=body,
    )


def same(one: JSON, other: JSON) -> bool:
    return _encode(one) == _encode(other)


def value_at(document: JSON, path: str) -> str:
    """The text of the field at a dotted path; empty when the field is absent, as in a field selector."""
    value: Any = document
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
