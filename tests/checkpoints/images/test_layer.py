"""An application checkpoint becomes one layer and comes back as it was; what was not packed by us is refused."""

import hashlib
import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from holdfast.checkpoints.errors import CheckpointError, Corrupt, Incomplete, UnsafeContent
from holdfast.checkpoints.images import layer as layers
from holdfast.checkpoints.images.errors import DigestMismatch
from holdfast.checkpoints.images.image import (
    LAYER_TYPE,
    ZSTD_LAYER_TYPE,
    BytesBlob,
    Descriptor,
    file_blob,
    sha256_digest,
)
from holdfast.checkpoints.images.layer import CheckpointLayer, compress_blob, is_compressible, unpack_layer
from holdfast.checkpoints.manifest import MANIFEST, CheckpointManifest, File, encode
from tests.checkpoints.images.test_archive import raw, record
from tests.checkpoints.making import ABOUT, content, fill

FILES = {
    "model.bin": bytes(range(256)) * 9000,
    "state/position.json": b"{}",
    "empty": b"",
    f"{'d' * 200}/{'n' * 150}": b"x",
}


def checkpoint(folder: Path, files: dict[str, bytes] = FILES) -> CheckpointManifest:
    fill(folder, files)
    entries = (File(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in files.items())
    return CheckpointManifest(3, 1, ABOUT, tuple(entries))


def described(data: bytes, media_type: str = LAYER_TYPE) -> Descriptor:
    return Descriptor(media_type=media_type, digest=sha256_digest(data), size=len(data))


def packed(folder: Path, manifest: CheckpointManifest) -> bytes:
    return b"".join(CheckpointLayer(folder, manifest).read(0))


def pieces(data: bytes, size: int = 1000) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    manifest = checkpoint(tmp_path / "a")
    data = packed(tmp_path / "a", manifest)
    assert unpack_layer(pieces(data), described(data), tmp_path / "b").files == tuple(
        sorted(manifest.files, key=lambda file: file.path)
    )
    assert content(tmp_path / "b") == FILES
    assert (tmp_path / "b" / MANIFEST).read_bytes() == encode(manifest)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_the_same_checkpoint_gives_the_same_layer_whenever_and_wherever(tmp_path: Path) -> None:
    one, other = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b")
    os.utime(tmp_path / "b" / "model.bin", (1, 1))
    (tmp_path / "b" / "model.bin").chmod(0o600)
    assert packed(tmp_path / "a", one) == packed(tmp_path / "b", other)


def test_the_size_is_known_before_and_every_offset_can_be_read(tmp_path: Path) -> None:
    manifest = checkpoint(tmp_path / "a")
    blob = CheckpointLayer(tmp_path / "a", manifest)
    data = b"".join(blob.read(0))
    assert blob.size == len(data)
    for offset in (*range(0, 6000, 333), len(data) - 1025, len(data) - 1, len(data)):
        assert b"".join(blob.read(offset)) == data[offset:]
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == [MANIFEST, *sorted(FILES)]


def test_a_file_that_changed_after_its_manifest_is_not_packed(tmp_path: Path) -> None:
    manifest = checkpoint(tmp_path / "a")
    (tmp_path / "a" / "model.bin").write_bytes(bytes(len(FILES["model.bin"])))
    with pytest.raises(Corrupt, match="digest differs"):
        packed(tmp_path / "a", manifest)
    (tmp_path / "a" / "model.bin").write_bytes(b"")
    with pytest.raises(Incomplete, match="written to"):
        packed(tmp_path / "a", manifest)


def test_a_link_in_the_place_of_a_file_does_not_lead_out_of_the_checkpoint(tmp_path: Path) -> None:
    manifest = checkpoint(tmp_path / "a")
    (tmp_path / "a" / "model.bin").unlink()
    (tmp_path / "a" / "model.bin").symlink_to("/etc/hostname")
    with pytest.raises(OSError, match="leads out"):
        packed(tmp_path / "a", manifest)


@pytest.mark.parametrize("media_type", [LAYER_TYPE, ZSTD_LAYER_TYPE])
def test_a_layer_that_was_changed_or_cut_is_refused_and_leaves_nothing(tmp_path: Path, media_type: str) -> None:
    manifest = checkpoint(tmp_path / "a")
    data = whole = packed(tmp_path / "a", manifest)
    if media_type == ZSTD_LAYER_TYPE:
        compress_blob(BytesBlob(whole), tmp_path / "z")
        data = (tmp_path / "z").read_bytes()
        (tmp_path / "z").unlink()
    layer = described(data, media_type)
    for at in (0, 100, 600, len(data) // 2, len(data) - 1):
        for changed in (data[:at], data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :], data + b"more"):
            with pytest.raises(CheckpointError):
                unpack_layer(pieces(changed), layer, tmp_path / "b")
            assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_layer_with_another_digest_is_refused_though_its_files_fit_its_manifest(tmp_path: Path) -> None:
    manifest = checkpoint(tmp_path / "a")
    data = packed(tmp_path / "a", manifest)
    forged = packed(tmp_path / "c", checkpoint(tmp_path / "c", {"model.bin": b"forged"}))
    (tmp_path / "b").mkdir()
    with pytest.raises(DigestMismatch, match=r"changed in the registry"):
        unpack_layer(pieces(forged), described(data), tmp_path / "b")
    assert list((tmp_path / "b").iterdir()) == []


def tar_of(manifest: CheckpointManifest, members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        first = tarfile.TarInfo(MANIFEST)
        first.size = len(encode(manifest))
        tar.addfile(first, io.BytesIO(encode(manifest)))
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def odd(kind: bytes, name: str = "model.bin") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/hostname"
    return info


@pytest.mark.parametrize(
    "members",
    [
        [(odd(tarfile.SYMTYPE), b"")],
        [(odd(tarfile.LNKTYPE), b"")],
        [(odd(tarfile.CHRTYPE), b"")],
        [(odd(tarfile.FIFOTYPE), b"")],
        [(odd(tarfile.DIRTYPE), b"")],
        [(odd(tarfile.REGTYPE, "../model.bin"), b"x")],
        [(odd(tarfile.REGTYPE, "/model.bin"), b"x")],
        [(odd(tarfile.REGTYPE), b"x"), (odd(tarfile.REGTYPE, "extra"), b"x")],
        [(odd(tarfile.REGTYPE), b"longer")],
        [(odd(tarfile.REGTYPE), b"y")],
        [],
    ],
)
def test_links_devices_and_paths_that_leave_are_refused(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    data = tar_of(checkpoint(tmp_path / "a", {"model.bin": b"x"}), members)
    with pytest.raises((UnsafeContent, Corrupt)):
        unpack_layer(pieces(data), described(data), tmp_path / "b")
    assert not (tmp_path / "b").exists()
    assert not (tmp_path / "model.bin").exists()


def test_the_manifest_of_the_layer_may_not_name_a_path_that_leaves(tmp_path: Path) -> None:
    good = checkpoint(tmp_path / "a", {"xxmodel": b"x"})
    data = tar_of(good, [(odd(tarfile.REGTYPE, "xxmodel"), b"x")]).replace(b'"xxmodel"', b'"../mode"')
    with pytest.raises(UnsafeContent, match="refused"):
        unpack_layer(pieces(data), described(data), tmp_path / "b")


def test_a_header_of_any_size_is_not_held_in_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    info.pax_headers = {"comment": "c" * 40_000_000}
    compress_blob(BytesBlob(info.tobuf(tarfile.PAX_FORMAT)), tmp_path / "z")
    data = (tmp_path / "z").read_bytes()
    with pytest.raises(UnsafeContent, match="header"):
        unpack_layer(pieces(data), described(data, ZSTD_LAYER_TYPE), tmp_path / "b")


def test_a_layer_of_another_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsafeContent, match="gzip"):
        unpack_layer([], described(b"", f"{LAYER_TYPE}+gzip"), tmp_path / "b")


def test_a_compressed_layer_is_smaller_has_its_diff_id_and_comes_back(tmp_path: Path) -> None:
    manifest = checkpoint(tmp_path / "a")
    blob = CheckpointLayer(tmp_path / "a", manifest)
    diff_id = compress_blob(blob, tmp_path / "z")
    assert diff_id == sha256_digest(b"".join(blob.read(0)))
    compressed = file_blob(tmp_path / "z")
    assert compressed.size < blob.size / 10
    data = (tmp_path / "z").read_bytes()
    unpack_layer(pieces(data), described(data, ZSTD_LAYER_TYPE), tmp_path / "b")
    assert content(tmp_path / "b") == FILES


def test_what_does_not_shrink_by_a_tenth_is_not_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_compressible(BytesBlob(bytes(100_000)))
    assert not is_compressible(BytesBlob(os.urandom(100_000)))
    assert not is_compressible(BytesBlob(os.urandom(95_000) + bytes(5_000)))
    assert is_compressible(BytesBlob(os.urandom(80_000) + bytes(20_000)))
    assert not is_compressible(BytesBlob(b""))


def test_a_sample_decides_not_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "blob"
    with path.open("wb") as file:
        file.write(os.urandom(4 << 20))
        file.truncate(40 << 20)
    assert is_compressible(file_blob(path))
    monkeypatch.setattr(layers, "SAMPLE_BYTES", 4 << 20)
    assert not is_compressible(file_blob(path))


def test_a_full_disk_leaves_no_part_of_a_compressed_layer(tmp_path: Path) -> None:
    class Failing:
        size = 10

        def read(self, offset: int) -> Iterator[bytes]:
            yield b"some"
            raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="No space"):
        compress_blob(Failing(), tmp_path / "z")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "before",
    [
        raw("pax", b"x", record("comment", "x")) * 3000,
        raw("pax", b"g", record("comment", "x")) * 3000,
        raw("L", b"L", b"x\0") * 3000,
        raw("pax", b"x", b"9" * 5000 + b" path=x\n"),
        raw("pax", b"x", record("GNU.sparse.size", "9" * 5000)),
        raw("pax", b"x", record("size", "-1024")),
    ],
    ids=["deep", "deep and global", "deep names", "a huge number", "a huge size", "a negative size"],
)
def test_a_header_that_tarfile_stumbles_over_is_damage_like_any_other(tmp_path: Path, before: bytes) -> None:
    data = before + packed(tmp_path / "a", checkpoint(tmp_path / "a", {"model.bin": b"x"}))
    with pytest.raises(Corrupt, match="damaged or truncated"):
        unpack_layer(pieces(data), described(data), tmp_path / "b")
    assert not (tmp_path / "b").exists()
