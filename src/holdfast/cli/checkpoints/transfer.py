"""The protocol that transfers one checkpoint from a command in a pod to this process.

The command in the pod first sends a line with the name and manifest of the checkpoint. Then it receives a path of the
manifest per line, and replies with a line with the size and as many bytes; size -1 means an unreadable file. An empty
line ends the transfer: not every server notifies the command that the client is gone.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
from msgspec import MsgspecError, Struct, field

from holdfast.checkpoints import manifest as manifests
from holdfast.checkpoints.errors import CheckpointError, Corrupt, StoreError
from holdfast.checkpoints.files import CHUNK_BYTES
from holdfast.checkpoints.manifest import CheckpointManifest, CheckpointName, File, parse
from holdfast.checkpoints.store import require_manifest
from holdfast.checkpoints.unpack import Reading, unpack
from holdfast.cli.checkpoints.operations import Which, select_checkpoint
from holdfast.cli.checkpoints.view import VolumeView
from holdfast.cluster.errors import ClusterError
from holdfast.cluster.kubernetes.subresources import ExecStream

UNREADABLE = -1
GOODBYE = b"\n"
# A manifest in a line, with room for JSON escapes.
LONGEST_LINE = 2 * manifests.MAX_BYTES

T = TypeVar("T")


class TransferHeader(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The offered checkpoint, or the reason why there is none."""

    attempt: int = 0
    leaf: str = ""
    manifest: str = ""
    error: str = field(default="", name="trouble")


def send_checkpoint(folder: Path, which: Which, requests: IO[bytes], out: IO[bytes]) -> None:
    """The pod side: serves files until the client ends the transfer or disconnects."""
    view = VolumeView(folder)
    try:
        name = select_checkpoint(view.store, which)
        manifest = require_manifest(view.store, name)
    except CheckpointError as error:
        _write_line(out, msgspec.json.encode(TransferHeader(error=str(error))))
        return
    text = manifests.encode(manifest).decode()
    _write_line(out, msgspec.json.encode(TransferHeader(attempt=name.attempt, leaf=name.folder_name, manifest=text)))
    files = {file.path: file for file in manifest.files}
    for line in requests:
        if line == GOODBYE:
            return
        _send_file(view, name, files[msgspec.json.decode(line, type=str)], out)


def _send_file(view: VolumeView, name: CheckpointName, file: File, out: IO[bytes]) -> None:
    try:
        opened = view.open(name, file)
    except CheckpointError:
        _write_line(out, str(UNREADABLE).encode())
        return
    with opened:
        # One byte more than expected is enough to detect a file that is too long.
        left = min(os.fstat(opened.fileno()).st_size, file.size + 1)
        _write_line(out, str(left).encode())
        while left:
            chunk = opened.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise StoreError(f"{file.path} became shorter while it was read")
            out.write(chunk)
            left -= len(chunk)
    out.flush()


def _write_line(out: IO[bytes], line: bytes) -> None:
    out.write(line + b"\n")
    out.flush()


async def receive_checkpoint(
    attached: ExecStream, target: Callable[[CheckpointName], Path]
) -> tuple[CheckpointName, CheckpointManifest]:
    """The client side: download the checkpoint into the folder from `target`, verified; raises on any damage."""
    stream = _StreamReader(attached)
    name, manifest = _parse_header(await stream.line())
    try:
        # One file at a time: all files share the connection.
        await asyncio.to_thread(unpack, manifest, target(name), _reading(attached, stream), workers=1)
    finally:
        with suppress(ClusterError):  # a broken connection has no receiver
            await attached.write(GOODBYE)
    return name, manifest


def _reading(attached: ExecStream, stream: "_StreamReader") -> Reading:
    """A reader for a thread; the connection itself stays in this event loop."""
    loop = asyncio.get_running_loop()

    def wait_for(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def read(file: File) -> Iterator[bytes]:
        wait_for(attached.write(msgspec.json.encode(file.path) + b"\n"))
        left = int(wait_for(stream.line()))
        if left == UNREADABLE:
            raise Corrupt(f"{file.path} is missing, or can't be read")
        while left:
            chunk = wait_for(stream.some(left))
            left -= len(chunk)
            yield chunk

    return read


class _StreamReader:
    """Reads the stream of the pod by lines and by byte counts."""

    def __init__(self, attached: ExecStream) -> None:
        self._attached = attached
        self._rest = b""

    async def line(self) -> bytes:
        pieces = [self._rest]
        while b"\n" not in pieces[-1]:
            pieces.append(await self._more())
            if sum(map(len, pieces)) > LONGEST_LINE:
                raise StoreError("the pod says something else than it should: is its image a holdfast of this version?")
        line, _, self._rest = b"".join(pieces).partition(b"\n")
        return line

    async def some(self, most: int) -> bytes:
        """At least one byte, and at most `most` bytes."""
        stream = self._rest or await self._more()
        self._rest = stream[most:]
        return stream[:most]

    async def _more(self) -> bytes:
        if not (piece := await self._attached.read()):
            raise StoreError("the pod ended in the middle of the checkpoint: try again, and it is gone on with")
        return piece


def _parse_header(line: bytes) -> tuple[CheckpointName, CheckpointManifest]:
    try:
        header = msgspec.json.decode(line, type=TransferHeader)
    except MsgspecError:
        raise StoreError(f"the pod said {line[:200].decode(errors='replace')!a} instead of a checkpoint") from None
    if header.error:
        raise StoreError(header.error)
    name = parse(f"attempt-{header.attempt}", header.leaf)
    if name is None:
        raise StoreError(f"the pod offers {header.leaf[:100]!a}, which is no checkpoint")
    return name, manifests.decode(header.manifest.encode(), str(name))
