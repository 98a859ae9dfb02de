"""Looking at a database file before it is opened for writing.

Opening for writing already changes a file (the write-ahead log is folded in), and what can't be trusted must stay as
it was found, for a person or a backup tool to work on.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from zlib import crc32

from holdfast.cluster.errors import ClusterError

# "hfst": tells our file from another program's.
APPLICATION_ID = 0x68667374
LAYOUT = 1


class DatabaseUnusable(ClusterError):
    """The database file can't be served from; it is left as it was found."""


def check_database(path: Path) -> None:
    """Raise `Unusable` unless the file is absent, empty, or a sound database of ours."""
    if not _has_content(path):
        if _has_content(path.with_name(f"{path.name}-wal")):
            raise damaged(path, "it is empty, and its write-ahead log is not")
        return
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)) as db:
            _recognise(path, db)
            _check(path, db)
    except sqlite3.OperationalError as error:
        raise unopened(path, error) from error
    except sqlite3.DatabaseError as error:
        raise damaged(path, str(error)) from error


def _recognise(path: Path, db: sqlite3.Connection) -> None:
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and _pragma(db, "application_id") != APPLICATION_ID:
        raise DatabaseUnusable(f"{path} is a database, but not holdfast's: name another file or folder")
    if _pragma(db, "user_version") > LAYOUT:
        raise DatabaseUnusable(f"{path} was written by a newer holdfast: use that one, or name another folder")


def _check(path: Path, db: sqlite3.Connection) -> None:
    problem = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise damaged(path, " ".join(problem.split()))
    # SQLite keeps no checksums of what is in its pages.
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
