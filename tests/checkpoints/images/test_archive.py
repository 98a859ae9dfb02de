"""An archive is pushed only if it is a complete checkpoint of regular files and folders."""

import os
import tarfile
from pathlib import Path
from typing import Literal

import pytest

from holdfast.checkpoints.images import archive
from holdfast.checkpoints.images.archive import check_archive
from holdfast.checkpoints.images.errors import ArchiveRefused, ArchiveTruncated, ArchiveUnsafe
from tests.checkpoints.images.archives import FILES, write_archive


def odd(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


@pytest.mark.parametrize("format_", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_a_complete_archive_is_accepted_and_names_its_base_image(tmp_path: Path, format_: int) -> None:
    path = write_archive(tmp_path / "a.tar", format_=format_)
    found = check_archive(path)
    assert (found.size, found.members) == (path.stat().st_size, len(FILES))
    assert found.config.rootfs_image_ref.startswith("r.example/base@sha256:")
    assert found.config.runtime == "io.containerd.runc.v2"


@pytest.mark.parametrize("format_", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_and_names_that_begin_with_a_dot_are_read(tmp_path: Path, format_: int) -> None:
    files = {f"./{name}": content for name, content in FILES.items()}
    long = {f"checkpoint/{'n' * 150}/{'m' * 200}.img": b"x"}
    assert check_archive(write_archive(tmp_path / "a.tar", {**files, **long}, format_=format_)).members == 12


@pytest.mark.parametrize("format_", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_file_of_more_than_8_gib_is_passed_over_without_reading_it(tmp_path: Path, format_: Literal[1, 2]) -> None:
    path, size = tmp_path / "a.tar", 9 << 30
    info = tarfile.TarInfo("checkpoint/pages-1.img")
    info.size = size
    write_archive(path)
    whole = path.read_bytes()
    with path.open("wb") as file:
        file.write(info.tobuf(format_))
        file.seek(size, os.SEEK_CUR)  # a hole
        file.write(whole)
    assert check_archive(path).size > size
    os.truncate(path, size)
    with pytest.raises(ArchiveTruncated):
        check_archive(path)


@pytest.mark.parametrize("name", ["config.dump", "spec.dump", "status.dump", "checkpoint"])
def test_an_archive_without_one_of_its_parts_is_refused(tmp_path: Path, name: str) -> None:
    files = {path: content for path, content in FILES.items() if not path.startswith(name)}
    if name != "checkpoint":
        files |= {path: content for path, content in FILES.items() if path.startswith(f"{name}.")}
    with pytest.raises(ArchiveRefused, match=f"lacks {name}"):
        check_archive(write_archive(tmp_path / "a.tar", files))


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (odd("checkpoint/parent", tarfile.SYMTYPE, "../.."), "a symbolic link"),
        (odd("checkpoint/hard", tarfile.LNKTYPE, "config.dump"), "a hard link"),
        (odd("checkpoint/null", tarfile.CHRTYPE), "a device"),
        (odd("checkpoint/sda", tarfile.BLKTYPE), "a device"),
        (odd("checkpoint/pipe", tarfile.FIFOTYPE), "a pipe"),
        (odd("checkpoint/odd", b"Z"), "unknown type"),
        (odd("/etc/passwd", tarfile.REGTYPE), "leaves the archive"),
        (odd("checkpoint/../../etc/passwd", tarfile.REGTYPE), "leaves the archive"),
        (odd("..", tarfile.DIRTYPE), "leaves the archive"),
        (odd("config.dump", tarfile.REGTYPE), "twice"),
    ],
)
def test_links_devices_and_paths_that_leave_are_refused(
    tmp_path: Path, member: tuple[tarfile.TarInfo, bytes], said: str
) -> None:
    with pytest.raises(ArchiveUnsafe, match=said):
        check_archive(write_archive(tmp_path / "a.tar", more=(member,)))


def test_an_archive_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.tar")
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0"))
    end += -end % archive.BLOCK
    for size in range(0, end + 2 * archive.BLOCK, archive.BLOCK // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(ArchiveTruncated):
            check_archive(path)
    path.write_bytes(whole[: end + 2 * archive.BLOCK])
    check_archive(path)


def test_the_tail_of_an_older_file_after_the_end_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.tar")
    with path.open("ab") as file:
        file.write(b"older")
    with pytest.raises(ArchiveRefused, match="older file"):
        check_archive(path)


@pytest.mark.parametrize("content", [b"\x1f\x8b" + bytes(2000), b"{}" * 1000, b"x" * 512])
def test_what_is_no_tar_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(content)
    with pytest.raises(ArchiveRefused):
        check_archive(path)


def test_a_header_that_was_damaged_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.tar")
    content = bytearray(path.read_bytes())
    content[512] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArchiveRefused, match="damaged at byte 512"):
        check_archive(path)


def test_the_number_of_files_and_the_size_of_headers_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_archive(tmp_path / "a.tar", {**FILES, f"checkpoint/{'n' * 5000}": b""})
    monkeypatch.setattr(archive, "MAX_EXTENSION", 4096)
    with pytest.raises(ArchiveRefused, match="more than 4 KiB"):
        check_archive(path)
    monkeypatch.setattr(archive, "MAX_MEMBERS", 5)
    with pytest.raises(ArchiveRefused, match="more than 5 files"):
        check_archive(path)


def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveRefused, match=r"config\.dump"):
        check_archive(write_archive(tmp_path / "a.tar", {**FILES, "config.dump": b"{"}))


def test_only_headers_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_archive(tmp_path / "a.tar", {**FILES, "checkpoint/pages-2.img": bytes(20 << 20)})
    taken = 0
    pread = os.pread

    def counted(descriptor: int, size: int, offset: int) -> bytes:
        nonlocal taken
        taken += size
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    check_archive(path)
    assert taken < 64 << 10


@pytest.mark.parametrize(
    ("log", "version"),
    [
        (b"(00.000000) Version: 4.2.1 (gitid 0)\n(00.000001) Running on host\n", "4.2.1"),
        (b"(00.000000) Unable to get features\n", ""),
        (b"", ""),
        (None, ""),
    ],
)
def test_the_version_of_criu_is_read_from_its_log(tmp_path: Path, log: bytes | None, version: str) -> None:
    files = {name: content for name, content in FILES.items() if name != "dump.log"}
    archive = write_archive(tmp_path / "a.tar", files if log is None else {**files, "dump.log": log})
    assert check_archive(archive).criu_version == version


# What programs read in different ways: a path that leaves could hide behind one that does not.


def raw(name: str, kind: bytes, content: bytes = b"") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    return info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % archive.BLOCK)


def record(key: str, value: str) -> bytes:
    size = 0
    while len(line := f"{size} {key}={value}\n".encode()) != size:
        size = len(line)
    return line


EVIL = raw("../evil", b"0", b"x")
FINE = raw("checkpoint/q", b"0", b"x")


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (raw("checkpoint/x/", b"\0", EVIL), "no name of a file"),
        (raw("checkpoint/x/", b"0", EVIL), "no name of a file"),
        (raw("checkpoint/x/", b"7", EVIL), "no name of a file"),
        (raw("", b"0", b"x"), "no name of a file"),
        (raw("checkpoint/x/", b"5", EVIL), "the folder 'checkpoint/x/' .* has a content"),
        (raw("pax", b"x", record("size", "1024")) + raw("checkpoint/x/", b"5") + EVIL, "has a content"),
        (raw("pax", b"g", record("path", "../evil")) + FINE, "one path or one size"),
        (raw("pax", b"g", record("size", "0")) + FINE, "one path or one size"),
        (raw("pax", b"g", record("linkpath", "/etc")) + FINE, "sparse file or a link"),
        (raw("L", b"L", b"../evil\0") + raw("pax", b"x", record("path", "checkpoint/q")) + FINE, "twice"),
        (raw("pax", b"x", record("path", "checkpoint/q")) + raw("L", b"L", b"../evil\0") + FINE, "twice"),
        (raw("pax", b"x", record("path", "checkpoint/q")) + raw("pax", b"x", record("mtime", "1")) + EVIL, "twice"),
        (raw("L", b"L", b"checkpoint/q\0") + raw("L", b"L", b"../evil\0") + FINE, "twice"),
        (raw("L", b"L", b"checkpoint/q\0/../../../evil\0") + FINE, "leaves the archive"),
        (raw("pax", b"x", record("GNU.sparse.name", "../evil")) + FINE, "sparse"),
    ],
)
def test_what_programs_read_in_different_ways_is_refused(tmp_path: Path, members: bytes, said: str) -> None:
    path = write_archive(tmp_path / "a.tar")
    path.write_bytes(members + path.read_bytes())
    with pytest.raises(ArchiveUnsafe, match=said):
        check_archive(path)


def test_remarks_for_the_whole_archive_are_passed_over(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.tar")
    path.write_bytes(raw("pax", b"g", record("comment", "made by a runtime")) + path.read_bytes())
    assert check_archive(path).members == len(FILES)


@pytest.mark.parametrize(
    "extension",
    [
        record("size", "9" * 5000),
        record("size", "9" * 30),
        record("size", "-1"),
        record("size", "\u0661"),
        b"9" * 5000 + b" path=x\n",
        b"99 path=x\n",
        b"3 path=x\n",
        b"path=x\n",
        b"\xff" * 600,
    ],
)
def test_an_extended_header_that_lies_is_refused(tmp_path: Path, extension: bytes) -> None:
    path = write_archive(tmp_path / "a.tar")
    path.write_bytes(raw("pax", b"x", extension) + FINE + path.read_bytes())
    with pytest.raises(ArchiveRefused, match="extended header"):
        check_archive(path)


@pytest.mark.parametrize("config", [b'{"name":"\xff"}', b'{"x":' + b"[" * 100_000, b'{"id":1}', b"[]"])
def test_a_config_of_any_content_is_refused_with_a_sentence(tmp_path: Path, config: bytes) -> None:
    with pytest.raises(ArchiveRefused, match=r"config\.dump .* can't be read"):
        check_archive(write_archive(tmp_path / "a.tar", {**FILES, "config.dump": config}))
