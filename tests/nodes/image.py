"""Images without a registry: OCI archives that containerd imports, made of layers that are made of files."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from tests.nodes.tree import Tree

# What every root file system has; name resolution reads the last of these.
PLAIN = {
    "etc/passwd": "root:x:0:0::/root:/bin/sh\ntrainer:x:1000:1000::/tmp:/bin/sh\n",
    "etc/group": "root:x:0:\ntrainer:x:1000:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


class Layer(NamedTuple):
    digest: str
    size: int
    file: Path | None = None  # none: whoever imports an image with it has it already


def write_layer(tree: Tree, file: Path, *, root: bool = False) -> Layer:
    """A layer of these files; the `root` of a file system has also /etc, /tmp and the like."""
    with tarfile.open(file, "w", format=tarfile.GNU_FORMAT) as archive:
        if root:
            _add_plain(archive, tree)
        for member, path in tree.members():
            with path.open("rb") if member.isreg() else io.BytesIO() as content:
                archive.addfile(member, content)
    with file.open("rb") as written:
        digest = f"sha256:{hashlib.file_digest(written, 'sha256').hexdigest()}"
    return Layer(digest, file.stat().st_size, file)


def _add_plain(archive: tarfile.TarFile, tree: Tree) -> None:
    for name, mode in (("tmp", 0o1777), ("etc", 0o755), ("proc", 0o555), ("sys", 0o555), ("dev", 0o755)):
        folder = tarfile.TarInfo(name)
        folder.type, folder.mode = tarfile.DIRTYPE, mode
        if Path("/", name) not in tree.paths:  # some importers refuse a layer that has a path twice
            archive.addfile(folder)
    for name, text in PLAIN.items():
        _add(archive, name, text.encode())


def write_image(
    archive: Path, name: str, layers: Sequence[Layer], command: Sequence[str], environment: Mapping[str, str]
) -> None:
    """An archive with one image, that of this machine's architecture."""
    digests = [one.digest for one in layers]
    made = {"architecture": ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux"}
    run = {"Cmd": list(command), "Env": [f"{key}={value}" for key, value in environment.items()]}
    config = _json({**made, "config": run, "rootfs": {"type": "layers", "diff_ids": digests}})
    blobs = [_blob(LAYER, one.digest, one.size) for one in layers]
    manifest = _json({"schemaVersion": 2, "mediaType": MANIFEST, "config": _described(CONFIG, config), "layers": blobs})
    listed = {**_described(MANIFEST, manifest), "platform": made, "annotations": {"io.containerd.image.name": name}}
    with tarfile.open(archive, "w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", _json({"schemaVersion": 2, "manifests": [listed]}))
        for content in (config, manifest):
            _add(tar, _place(_digest(content)), content)
        for digest, size, brought in layers:
            if brought is not None:
                with brought.open("rb") as file:
                    _add_file(tar, _place(digest), file, size)


def _blob(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest, "size": size}


def _described(kind: str, content: bytes) -> dict[str, Any]:
    return _blob(kind, _digest(content), len(content))


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _place(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    _add_file(archive, name, io.BytesIO(content), len(content))


def _add_file(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    archive.addfile(member, content)
