"""Whether the archive of a container checkpoint may become an image: judged by its headers alone.

containerd and CRI-O write an uncompressed tar of regular files and folders: config.dump, spec.dump, status.dump, the
folder checkpoint/ with CRIU's files, and where there are any, rootfs-diff.tar, container.log, stats-dump, dump.log.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

import msgspec

from holdfast.checkpoints.images.errors import ArchiveRefused, ArchiveTruncated, ArchiveUnsafe
from holdfast.checkpoints.images.untrusted import UnreadableJson, decode_json

BLOCK = 512
# CRIU writes a few files per process and per open pipe; a million would take minutes to look at.
MAX_MEMBERS = 200_000
# The headers that hold long names and large sizes, and the dump files that are read.
MAX_EXTENSION = 1 << 20
MAX_DUMP = 4 << 20
# What may follow the end: some programs fill the last record with zeros. More is the tail of an older file.
MAX_PADDING = 1 << 20
# Digits of a size.
_LONGEST_NUMBER = 20

CONFIG_DUMP = "config.dump"
REQUIRED_FILES = (CONFIG_DUMP, "spec.dump", "status.dump")
CHECKPOINT_FOLDER = "checkpoint"
DUMP_LOG = "dump.log"
# CRIU's first line names its version.
_CRIU_VERSION = re.compile(rb"\bVersion: ([0-9][0-9A-Za-z.~-]{0,30})")

_FILES, _FOLDER = frozenset((b"0", b"\0", b"7")), b"5"
_PAX, _PAX_GLOBAL, _LONG_NAME = b"x", b"g", b"L"
_KINDS = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"6": "a pipe"}


class ContainerConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """config.dump, as the runtime wrote it."""

    id: str = ""
    name: str = ""
    rootfs_image: str = ""
    rootfs_image_ref: str = ""
    rootfs_image_name: str = ""
    runtime: str = ""
    checkpointed_time: str = ""


class CheckedArchive(NamedTuple):
    path: Path
    size: int
    members: int
    config: ContainerConfig
    criu_version: str = ""


class _Member(NamedTuple):
    name: str
    kind: bytes
    size: int
    content_at: int

    @property
    def end(self) -> int:
        return self.content_at + -(-self.size // BLOCK) * BLOCK


def check_archive(path: Path) -> CheckedArchive:
    """Raise ArchiveRefused unless the archive is complete and safe. Blocks on the disk: call it in a thread."""
    with path.open("rb", buffering=0) as file:
        return _Scan(file, path).run()


class _Scan:
    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._size = os.fstat(file.fileno()).st_size
        self._files: dict[str, _Member] = {}
        self._has_checkpoint = False
        self._dump_log: _Member | None = None

    def run(self) -> CheckedArchive:
        at = members = 0
        while (member := self._member(at)) is not None:
            members += 1
            if members > MAX_MEMBERS:
                raise ArchiveRefused(f"{self._path} holds more than {MAX_MEMBERS} files: it is not pushed")
            self._take(member)
            at = member.end
        self._must_be_complete()
        return CheckedArchive(self._path, self._size, members, self._config(), self._criu_version())

    def _take(self, member: _Member) -> None:
        shown = f"{member.name[:100]!a} in {self._path}"
        parts = PurePosixPath(member.name).parts
        if member.name.startswith("/") or ".." in parts or "\0" in member.name:
            raise ArchiveUnsafe(f"the path {shown} leaves the archive: it is not pushed")
        if member.kind not in _FILES and member.kind != _FOLDER:
            kind = _KINDS.get(member.kind, f"of the unknown type {member.kind!a}")
            raise ArchiveUnsafe(f"{shown} is {kind}: a checkpoint holds regular files and folders only")
        if member.end > self._size:
            raise self._truncated(f"{shown} should have {member.size} bytes")
        name = "/".join(parts)
        if member.kind != _FOLDER and name in REQUIRED_FILES:
            if name in self._files:
                raise ArchiveUnsafe(f"{shown} is there twice: it is not pushed")
            self._files[name] = member
        if member.kind != _FOLDER and name == DUMP_LOG:
            self._dump_log = member
        if parts[:1] == (CHECKPOINT_FOLDER,) and (member.kind == _FOLDER or len(parts) > 1):
            self._has_checkpoint = True

    def _must_be_complete(self) -> None:
        missing = [name for name in REQUIRED_FILES if name not in self._files]
        missing += [] if self._has_checkpoint else [f"{CHECKPOINT_FOLDER}/"]
        if missing:
            raise ArchiveRefused(
                f"{self._path} lacks {', '.join(missing)}: it is not a complete checkpoint, look at the runtime's log"
            )

    def _config(self) -> ContainerConfig:
        member = self._files[CONFIG_DUMP]
        try:
            return decode_json(self._read(member.content_at, member.size, MAX_DUMP), ContainerConfig)
        except UnreadableJson as error:
            raise ArchiveRefused(f"{CONFIG_DUMP} in {self._path} can't be read: {error}") from None

    def _criu_version(self) -> str:
        """ "" if there is no log, as where the runtime does not save it."""
        if self._dump_log is None:
            return ""
        beginning = self._read(self._dump_log.content_at, min(self._dump_log.size, 4 * BLOCK), 4 * BLOCK)
        found = _CRIU_VERSION.search(beginning)
        return found[1].decode() if found else ""

    def _member(self, at: int) -> _Member | None:
        """The next file or folder; None at the end.

        Where programs read a header in different ways, a path that leaves could hide behind one that does not.
        """
        name = extended_by = ""
        size: int | None = None
        while True:
            block = self._block(at)
            if not block.strip(b"\0"):
                self._must_end(at)
                return None
            if _checksum(block) != _number(block[148:156]):
                raise ArchiveRefused(f"{self._path} is not an uncompressed tar archive, or is damaged at byte {at}")
            kind, length = block[156:157], _number(block[124:136])
            if length < 0:
                raise ArchiveRefused(f"{self._path} has a header with an invalid size at byte {at}: it is damaged")
            if kind not in (_PAX, _PAX_GLOBAL, _LONG_NAME):
                return self._described(
                    _Member(name or _name(block), kind, length if size is None else size, at + BLOCK)
                )
            extension = self._read(at + BLOCK, length, MAX_EXTENSION)
            if kind == _PAX_GLOBAL:
                self._must_be_remarks(self._pax(extension))
            elif extended_by:
                raise ArchiveUnsafe(f"{self._path} names one of its files twice: it is not pushed")
            else:
                extended_by = kind.decode()
                records = {} if kind == _LONG_NAME else self._pax(extension)
                name = _decoded(extension.rstrip(b"\0")) if kind == _LONG_NAME else records.get("path", "")
                size = int(records["size"]) if "size" in records else None
            at = _Member("", kind, length, at + BLOCK).end

    def _described(self, member: _Member) -> _Member:
        """Some programs take a file whose name ends with a slash for a folder, and a folder has no content."""
        if member.kind in _FILES and (not member.name or member.name.endswith("/")):
            raise ArchiveUnsafe(f"{member.name[:100]!a} in {self._path} is no name of a file: it is not pushed")
        if member.kind == _FOLDER and member.size:
            raise ArchiveUnsafe(f"the folder {member.name[:100]!a} in {self._path} has a content: it is not pushed")
        return member

    def _must_be_remarks(self, records: Mapping[str, str]) -> None:
        if not records.keys().isdisjoint(("path", "size")):
            raise ArchiveUnsafe(f"{self._path} gives all its files one path or one size: it is not pushed")

    def _pax(self, content: bytes) -> dict[str, str]:
        records: dict[str, str] = {}
        while content:
            length, space, _ = content[:_LONGEST_NUMBER].partition(b" ")
            size = int(length) if space and length.isdigit() else 0
            record = content[:size]
            key, equals, value = record[len(length) + 1 :].partition(b"=")
            if len(record) < size or not equals or not value.endswith(b"\n"):
                raise ArchiveRefused(f"{self._path} has an extended header that can't be read: it is damaged")
            if key.startswith(b"GNU.sparse") or key == b"linkpath":
                raise ArchiveUnsafe(
                    f"{self._path} holds a sparse file or a link: a checkpoint holds regular files only"
                )
            records[_decoded(key)] = _decoded(value[:-1])
            content = content[len(record) :]
        told = records.get("size", "0")
        if not (told.isascii() and told.isdecimal() and len(told) <= _LONGEST_NUMBER):
            raise ArchiveRefused(f"{self._path} has an extended header with an invalid size: it is damaged")
        return records

    def _must_end(self, at: int) -> None:
        """Two empty blocks end an archive. The runtime does not cut an older, longer file of the same name."""
        rest = self._size - at
        if rest < 2 * BLOCK:
            raise self._truncated("its last two blocks are missing")
        if rest > MAX_PADDING or self._read(at, rest, MAX_PADDING).strip(b"\0"):
            raise ArchiveRefused(f"{self._path} goes on after its end: it is written over an older file")

    def _block(self, at: int) -> bytes:
        return self._read(at, BLOCK, BLOCK)

    def _read(self, at: int, size: int, limit: int) -> bytes:
        if size > limit:
            raise ArchiveRefused(
                f"{self._path} has a header or a dump file of more than {limit >> 10} KiB at byte {at}"
            )
        content = os.pread(self._file.fileno(), size, at)
        if len(content) < size:
            raise self._truncated(f"it should go on at byte {at}")
        return content

    def _truncated(self, why: str) -> ArchiveTruncated:
        return ArchiveTruncated(f"{self._path} ends after {self._size} bytes, and {why}: it is not pushed")


def _name(block: bytes) -> str:
    prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    name = block[:100].partition(b"\0")[0]
    return _decoded(prefix + b"/" + name if prefix else name)


def _number(field: bytes) -> int:
    """Octal digits, or a large number in base 256 as GNU writes it; -1 if it is neither."""
    if field[0] & 0x80:
        return int.from_bytes(bytes((field[0] & 0x7F,)) + field[1:], "big")
    digits = field.strip(b" \0")
    return int(digits, 8) if digits and not digits.strip(b"01234567") else 0 if not digits else -1


def _checksum(block: bytes) -> int:
    return sum(block[:148]) + sum(block[156:]) + 8 * 0x20


def _decoded(content: bytes) -> str:
    return content.decode(errors="surrogateescape")
