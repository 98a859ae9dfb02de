"""The layer of an application checkpoint, packed from a folder and unpacked as a stream; and layers with zstd.

The manifest of the checkpoint comes first, then its files by path, each of them with the same owner, mode and time: the
same checkpoint gives the same layer. What was not packed here is refused when it is unpacked.
"""

import functools
import hashlib
import io
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from holdfast.checkpoints import confined_files
from holdfast.checkpoints import files as disk
from holdfast.checkpoints.errors import Corrupt, Incomplete, UnsafeContent
from holdfast.checkpoints.images.errors import DigestMismatch
from holdfast.checkpoints.images.image import LAYER_TYPE, READ_BYTES, ZSTD_LAYER_TYPE, Blob, Descriptor
from holdfast.checkpoints.manifest import MANIFEST, MAX_BYTES, CheckpointManifest, File, decode, encode
from holdfast.checkpoints.unpack import Result, unpack

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# The first bytes show whether compression is worth the time: random weights and compressed data do not shrink.
SAMPLE_BYTES = 64 << 20
WORTHWHILE = 0.9
ZSTD_LEVEL = 1
# Headers with long paths take two KiB; tarfile reads ahead.
MAX_HEADER = 2 * READ_BYTES + (1 << 20)
# A frame may ask for a large window, which is memory: level 1 uses half a MiB of at most 8.
_WINDOW: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 23}
# What tarfile lets pass of a header with huge or odd numbers, or of thousands of headers for one file.
_NUMBERS_AND_DEPTH = (ValueError, OverflowError, RecursionError)
_END = bytes(2 * tarfile.BLOCKSIZE)


class CheckpointLayer:
    """A tar archive of a checkpoint's folder that exists only while it is read. Files are verified as they pass."""

    def __init__(self, folder: Path, manifest: CheckpointManifest) -> None:
        self._folder = folder
        self._manifest = encode(manifest)
        self._files = sorted(manifest.files, key=lambda file: file.path)
        self.size = sum(size for size, _ in self._pieces())

    def read(self, offset: int) -> Iterator[bytes | memoryview]:
        for size, content in self._pieces():
            if offset < size:
                yield from content(offset)
            offset = max(0, offset - size)

    def _pieces(self) -> Iterator[tuple[int, "_Content"]]:
        """Each piece with its size and a function that reads it from an offset on."""
        head = _header(MANIFEST, len(self._manifest)) + self._manifest + _padding(len(self._manifest))
        yield len(head), _bytes(head)
        for file in self._files:
            before, after = _header(file.path, file.size), _padding(file.size)
            yield len(before), _bytes(before)
            yield file.size, self._content(file)
            yield len(after), _bytes(after)
        yield len(_END), _bytes(_END)

    def _content(self, file: File) -> "_Content":
        def read(offset: int) -> Iterator[bytes | memoryview]:
            left, digest = file.size - offset, None if offset else hashlib.sha256()
            with confined_files.regular(self._folder, file.path) as path, path.open("rb", buffering=0) as source:
                source.seek(offset)
                while left:
                    chunk = source.read(min(READ_BYTES, left))
                    if not chunk:
                        raise Incomplete(f"{self._folder / file.path} was written to while it was read: save it anew")
                    left -= len(chunk)
                    if digest:
                        digest.update(chunk)
                    yield chunk
            if digest and digest.hexdigest() != file.sha256:
                raise Corrupt(f"the content of {self._folder / file.path} is not what was saved: its digest differs")

        return read


_Content = Callable[[int], Iterator[bytes | memoryview]]


def _bytes(content: bytes) -> _Content:
    return lambda offset: iter((content[offset:],))


def _header(path: str, size: int) -> bytes:
    info = tarfile.TarInfo(path)
    info.size, info.mode = size, 0o644
    return info.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


# Where a checkpoint goes, and as what: the folder, and the manifest that is written there.
Place = Callable[[CheckpointManifest], tuple[Path, CheckpointManifest]]


def unpack_layer(
    chunks: Iterable[bytes | memoryview], layer: Descriptor, target: Path, *, durable: bool = True
) -> CheckpointManifest:
    """`target` holds the checkpoint when this returns, and is unchanged when this raises. Blocks: call it in a thread.

    Every file is compared with the checkpoint's manifest, and the whole with the layer's digest before the target is
    renamed. Links, devices, unknown files and paths that leave the folder are refused.
    """
    return unpack_layer_as(chunks, layer, lambda manifest: (target, manifest), durable=durable)


def unpack_layer_as(
    chunks: Iterable[bytes | memoryview], layer: Descriptor, choose_target: Place, *, durable: bool = True
) -> CheckpointManifest:
    """The same for whoever names the folder by what the checkpoint is; `choose_target` changes nothing of its files."""
    reader = _LayerReader(chunks, layer)
    target, manifest = choose_target(reader.manifest)
    disk.remove_any(target.with_name(f"{disk.RESTORING}{target.name}"))
    unpack(manifest, target, reader.read, workers=1, durable=durable)
    return manifest


class _LayerReader:
    """Gives the files in the order in which they were packed; after the last one, the layer's digest must be right."""

    def __init__(self, chunks: Iterable[bytes | memoryview], layer: Descriptor) -> None:
        self._stream = _DigestedStream(chunks, layer)
        if layer.media_type not in (LAYER_TYPE, ZSTD_LAYER_TYPE):
            raise UnsafeContent(f"the layer has the type {layer.media_type!a}: it is not one of holdfast's")
        is_compressed = layer.media_type == ZSTD_LAYER_TYPE
        self._source = _HeaderLimit(zstd.ZstdFile(self._stream, options=_WINDOW) if is_compressed else self._stream)
        self._tar: tarfile.TarFile = self._translated(
            lambda: tarfile.TarFile.open(fileobj=self._source, mode="r|", bufsize=READ_BYTES)  # type: ignore[call-overload]
        )
        self._failure: Corrupt | None = None
        self.manifest = self._first()
        self._left = sorted(self.manifest.files, key=lambda file: file.path, reverse=True)

    def _first(self) -> CheckpointManifest:
        member = self._member(MANIFEST)
        if member.size > MAX_BYTES:
            raise UnsafeContent(f"the manifest in the layer is larger than {MAX_BYTES >> 20} MiB")
        content = b"".join(bytes(chunk) for chunk in self._content(member))
        return decode(content, "the layer")

    def read(self, file: File) -> Iterator[bytes | memoryview]:
        if not self._left or self._left[-1] != file:
            # A stream can't be read a second time, so the reason of the first stays.
            raise self._failure or Corrupt(f"the content of {file.path} is not what was saved: its digest differs")
        self._left.pop()
        try:
            yield from self._next_file(file)
        except Corrupt as error:
            self._failure = error
            raise

    def _next_file(self, file: File) -> Iterator[bytes | memoryview]:
        member = self._member(file.path)
        if member.size != file.size:
            raise Corrupt(f"{file.path} has {member.size} bytes in the layer, and {file.size} in its manifest")
        yield from self._content(member)
        if not self._left:
            self._must_end()

    def _member(self, path: str) -> tarfile.TarInfo:
        member = self._next()
        if member is None:
            raise Corrupt(f"the layer ends before {path}: it is truncated")
        if member.name != path or not member.isreg() or member.sparse is not None:
            raise UnsafeContent(f"the layer holds {member.name[:100]!a} where {path} should be: it is not unpacked")
        return member

    def _content(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        source = self._tar.extractfile(member)
        assert source is not None, "a regular file"
        left = member.size
        self._source.left = None
        while left:
            chunk = self._translated(functools.partial(source.read, min(READ_BYTES, left)))
            if not chunk:
                raise Corrupt(f"the layer ends in the middle of {member.name}: it is truncated")
            left -= len(chunk)
            yield chunk

    def _must_end(self) -> None:
        if (extra := self._next()) is not None:
            raise UnsafeContent(f"the layer holds {extra.name[:100]!a}, which its manifest does not name")
        self._stream.must_match()

    def _next(self) -> tarfile.TarInfo | None:
        self._source.left = MAX_HEADER
        return self._translated(self._tar.next)

    def _translated(self, read: Callable[[], Result]) -> Result:
        try:
            return read()
        except (tarfile.TarError, EOFError, zstd.ZstdError, *_NUMBERS_AND_DEPTH) as error:
            raise Corrupt(f"the layer can't be read ({error}): it is damaged or truncated") from None


class _HeaderLimit:
    """What tarfile reads from. A header of any size would be held in memory, so its size is limited."""

    def __init__(self, source: "_DigestedStream | zstd.ZstdFile") -> None:
        self._source = source
        self.left: int | None = MAX_HEADER

    def read(self, size: int) -> bytes:
        chunk = self._source.read(size)
        if self.left is not None:
            self.left -= len(chunk)
            if self.left < 0:
                raise UnsafeContent("the layer has a header of more than some MiB: it is not one of holdfast's")
        return chunk


class _DigestedStream(io.RawIOBase):
    """Chunks as a file that digests what is read from it."""

    def __init__(self, chunks: Iterable[bytes | memoryview], layer: Descriptor) -> None:
        self._chunks = iter(chunks)
        self._layer = layer
        self._left = memoryview(b"")
        self._digest = hashlib.sha256()
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = memoryview(chunk)
            self._digest.update(self._left)
            self._size += len(self._left)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def must_match(self) -> None:
        while self.read(READ_BYTES):
            pass
        found = f"sha256:{self._digest.hexdigest()}"
        if (found, self._size) != (self._layer.digest, self._layer.size):
            raise DigestMismatch(
                f"the layer should be {self._layer.digest} with {self._layer.size} bytes, and is {found} with "
                f"{self._size}: it was changed in the registry or on the way"
            )


def is_compressible(blob: Blob) -> bool:
    """Whether the first bytes shrink by at least a tenth."""
    compressor, taken, made = zstd.ZstdCompressor(level=ZSTD_LEVEL), 0, 0
    for chunk in blob.read(0):
        taken += len(chunk)
        made += len(compressor.compress(chunk))
        if taken >= SAMPLE_BYTES:
            break
    made += len(compressor.flush())
    return made <= taken * WORTHWHILE


def compress_blob(blob: Blob, target: Path) -> str:
    """Write the blob compressed, and return the digest of what it was uncompressed: the diff id of the layer.

    Into a file: a registry wants to know the size before the first byte, and after a broken connection a part again.
    """
    digest = hashlib.sha256()
    options: dict[int, int] = {
        zstd.CompressionParameter.compression_level: ZSTD_LEVEL,
        zstd.CompressionParameter.checksum_flag: 1,
    }
    compressor = zstd.ZstdCompressor(options=options)

    def compressed() -> Iterator[bytes]:
        for chunk in blob.read(0):
            digest.update(chunk)
            yield compressor.compress(chunk)
        yield compressor.flush()

    with disk.translate_os_errors(f"compress a layer into {target}"):
        try:
            disk.write_stream(target, compressed(), durable=False)
        except BaseException:
            disk.remove_any(target)
            raise
    return f"sha256:{digest.hexdigest()}"
