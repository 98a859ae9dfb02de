"""Archives of container checkpoints as containerd writes them, and their variants."""

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.leaks import ARCHIVE_MARK

CONFIG = {
    "id": "0c1d",
    "name": "k8s_main_numbers",
    "rootfsImage": "r.example/base:1",
    "rootfsImageRef": "r.example/base@sha256:" + "ab" * 32,
    "rootfsImageName": "r.example/base:1",
    "runtime": "io.containerd.runc.v2",
    "createdTime": "2026-01-02T03:04:05Z",
    "checkpointedTime": "2026-01-02T03:05:06.123456789Z",
    "restoredTime": "0001-01-01T00:00:00Z",
    "restored": False,
}
FILES: Mapping[str, bytes] = {
    "checkpoint/": b"",
    "checkpoint/core-1.img": b"core" * 1000,
    "checkpoint/pages-1.img": ARCHIVE_MARK.encode() * 5000,
    "config.dump": json.dumps(CONFIG).encode(),
    "container.log": b"",
    "dump.log": b"(00.000000) Version: 4.2.1\n",
    "rootfs-diff.tar": b"\x1f\x8b not looked into",
    "spec.dump": b'{"ociVersion":"1.2.0"}',
    "stats-dump": b"\1",
    "status": b"{}",
    "status.dump": b"{}",
}
Member = tuple[tarfile.TarInfo, bytes]


def write_archive(
    path: Path, files: Mapping[str, bytes] = FILES, more: tuple[Member, ...] = (), format_: int = tarfile.PAX_FORMAT
) -> Path:
    with tarfile.open(path, "w", format=format_) as archive:
        for name, content in files.items():
            archive.addfile(*member(name, content))
        for info, content in more:
            archive.addfile(info, io.BytesIO(content))
    return path


def member(
    name: str, content: bytes = b"", change: Callable[[tarfile.TarInfo], object] = str
) -> tuple[tarfile.TarInfo, io.BytesIO]:
    info = tarfile.TarInfo(name.removesuffix("/"))
    info.size, info.mtime = len(content), 1_767_323_106
    if name.endswith("/"):
        info.type = tarfile.DIRTYPE
    change(info)
    return info, io.BytesIO(content)
