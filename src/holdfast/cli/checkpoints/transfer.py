"""One checkpoint leaves a pod, in a conversation with a command that runs in it.

The command says first which checkpoint it is, in a line with the manifest. Then it is told a path of the manifest in a
line, and answers with a size in a line and so many bytes; a size of -1 stands for a file that can't be read. An empty
line ends the conversation: not every server tells the command that nobody listens any more.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
from msgspec import MsgspecError, Struct

from holdfast.checkpoints import manifest as manifests
from holdfast.checkpoints.errors import CheckpointError, Corrupt, StoreError
from holdfast.checkpoints.files import CHUNK_BYTES
from holdfast.checkpoints.manifest import CheckpointName, File, Manifest, parse
from holdfast.checkpoints.store import require_manifest
from holdfast.checkpoints.unpack import Reading, unpack
from holdfast.cli.checkpoints.messages import Which
from holdfast.cli.checkpoints.operations import select_checkpoint
from holdfast.cli.checkpoints.view import VolumeView
from holdfast.cluster.errors import ClusterError
from holdfast.cluster.kubernetes.subresources import ExecStream

UNREADABLE = -1
GOODBYE = b"\n"
# A manifest in a line, and the escapes that being a text costs it.
LONGEST_LINE = 2 * manifests.MAX_BYTES

T = TypeVar("T")


class TransferHeader(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is handed over, or why nothing is."""

    attempt: int = 0
    leaf: str = ""
    manifest: str = ""
    trouble: str = ""


def send_checkpoint(folder: Path, which: Which, asked: IO[bytes], out: IO[bytes]) -> None:
    """The pod's end, until the other one has said goodbye, or has gone."""
    place = VolumeView(folder)
    try:
        name = select_checkpoint(place.store, which)
        manifest = require_manifest(place.store, name)
    except CheckpointError as error:
        _say(out, msgspec.json.encode(TransferHeader(trouble=str(error))))
        return
    text = manifests.encode(manifest).decode()
    _say(out, msgspec.json.encode(TransferHeader(attempt=name.attempt, leaf=name.folder_name, manifest=text)))
    files = {file.path: file for file in manifest.files}
    for line in asked:
        if line == GOODBYE:
            return
        _hand_out(place, name, files[msgspec.json.decode(line, type=str)], out)


def _hand_out(place: VolumeView, name: CheckpointName, file: File, out: IO[bytes]) -> None:
    try:
        opened = place.open(name, file)
    except CheckpointError:
        _say(out, str(UNREADABLE).encode())
        return
    with opened:
        # A byte more than there should be is enough to see that there are too many.
        left = min(os.fstat(opened.fileno()).st_size, file.size + 1)
        _say(out, str(left).encode())
        while left:
            chunk = opened.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise StoreError(f"{file.path} became shorter while it was read")
            out.write(chunk)
            left -= len(chunk)
    out.flush()


def _say(out: IO[bytes], line: bytes) -> None:
    out.write(line + b"\n")
    out.flush()


async def receive_checkpoint(
    attached: ExecStream, target: Callable[[CheckpointName], Path]
) -> tuple[CheckpointName, Manifest]:
    """This end: the checkpoint is in the folder that `target` names, whole and checked, or it raises."""
    coming = _StreamReader(attached)
    name, manifest = _offered(await coming.line())
    try:
        # One file at a time: they share the connection.
        await asyncio.to_thread(unpack, manifest, target(name), _reading(attached, coming), workers=1)
    finally:
        with suppress(ClusterError):  # where the connection broke, there is nobody to say it to
            await attached.write(GOODBYE)
    return name, manifest


def _reading(attached: ExecStream, coming: "_StreamReader") -> Reading:
    """For a thread: the conversation itself stays in this loop."""
    loop = asyncio.get_running_loop()

    def wait_for(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def read(file: File) -> Iterator[bytes]:
        wait_for(attached.write(msgspec.json.encode(file.path) + b"\n"))
        left = int(wait_for(coming.line()))
        if left == UNREADABLE:
            raise Corrupt(f"{file.path} is missing, or can't be read")
        while left:
            chunk = wait_for(coming.some(left))
            left -= len(chunk)
            yield chunk

    return read


class _StreamReader:
    """What the other end says, by lines and by counts."""

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
        """At least a byte, and no more than so many."""
        coming = self._rest or await self._more()
        self._rest = coming[most:]
        return coming[:most]

    async def _more(self) -> bytes:
        if not (piece := await self._attached.read()):
            raise StoreError("the pod ended in the middle of the checkpoint: try again, and it is gone on with")
        return piece


def _offered(line: bytes) -> tuple[CheckpointName, Manifest]:
    try:
        offer = msgspec.json.decode(line, type=TransferHeader)
    except MsgspecError:
        raise StoreError(f"the pod said {line[:200].decode(errors='replace')!a} instead of a checkpoint") from None
    if offer.trouble:
        raise StoreError(offer.trouble)
    name = parse(f"attempt-{offer.attempt}", offer.leaf)
    if name is None:
        raise StoreError(f"the pod offers {offer.leaf[:100]!a}, which is no checkpoint")
    return name, manifests.decode(offer.manifest.encode(), str(name))
