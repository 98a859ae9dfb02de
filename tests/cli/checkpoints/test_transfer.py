"""A checkpoint on its way out of a pod, between a real process and a folder here."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.checkpoints.errors import Corrupt, InvalidCheckpointManifest, StoreError
from holdfast.checkpoints.manifest import CheckpointManifest, CheckpointName, checkpoint_name
from holdfast.checkpoints.retention import Metric
from holdfast.cli.checkpoints.operations import Which
from holdfast.cli.checkpoints.pod import options
from holdfast.cli.checkpoints.transfer import receive_checkpoint
from holdfast.cluster.errors import Unreachable
from holdfast.cluster.kubernetes.subresources import ExecStream
from tests.checkpoints.making import MODEL, content
from tests.cli.checkpoints.jobs import below, fill_volume

LARGE = {**MODEL, "large.bin": bytes(range(256)) * 16384, "with space\u00e9.txt": b"x"}
FOLDER = Path("attempt-0/checkpoint-epoch-1")


class Pipe(ExecStream):
    """What a conversation with a pod does, with a process here. `cut_after` bytes of answers it breaks."""

    def __init__(self, process: asyncio.subprocess.Process, cut_after: int | None) -> None:
        self._process = process
        self._left = cut_after

    async def write(self, content: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(content)
            await self._process.stdin.drain()
        except OSError:
            raise Unreachable("the pod is gone") from None

    async def read(self) -> bytes:
        assert self._process.stdout is not None
        piece = await self._process.stdout.read(32 << 10)
        if self._left is not None:
            self._left -= len(piece)
            if self._left < 0:
                raise StoreError("the connection broke")
        return piece


@asynccontextmanager
async def pod(*command: str, cut_after: int | None = None) -> AsyncIterator[ExecStream]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        try:
            yield Pipe(process, cut_after)
        finally:
            if cut_after is None:
                async with asyncio.timeout(60):
                    assert await process.wait() == 0, "it ends by itself, though its input stays open"
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def taken(
    volume: Path, target: Path, *, epoch: int | None = None, best_by: Metric | None = None, cut_after: int | None = None
) -> tuple[CheckpointName, CheckpointManifest]:
    chosen = options(Which(epoch=epoch, best_by=best_by))
    command = [sys.executable, "-m", "holdfast", "checkpoints", "hand-out", str(volume), *chosen]
    async with asyncio.timeout(120), pod(*command, cut_after=cut_after) as attached:
        return await receive_checkpoint(attached, lambda _name: target)


async def said(line: str, target: Path) -> None:
    """A pod that says this and nothing else."""
    async with asyncio.timeout(120), pod(sys.executable, "-c", f"print({line!r})") as attached:
        await receive_checkpoint(attached, lambda _name: target)


async def test_a_checkpoint_arrives_whole_whatever_its_files_are_called(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    fill_volume(volume, checkpoint_name(1, 0), checkpoint_name(2, 0), files=LARGE)
    name, manifest = await taken(volume, tmp_path / "copy", epoch=1)
    assert (name, len(manifest.files)) == (checkpoint_name(1, 0), len(LARGE))
    assert content(tmp_path / "copy") == LARGE


async def test_the_best_is_handed_out(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    fill_volume(volume, checkpoint_name(1, 0), files={**MODEL, ".holdfast-complete": b'{"metrics": {"accuracy": 0.9}}'})
    fill_volume(volume, checkpoint_name(2, 0), files={**MODEL, ".holdfast-complete": b'{"metrics": {"accuracy": 0.8}}'})
    name, manifest = await taken(volume, tmp_path / "copy", best_by="accuracy")
    assert (name, manifest.metrics) == (checkpoint_name(1, 0), {"accuracy": 0.9})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (b"WEIGHTS", "the content of model.bin is not what was saved"),
        (b"weights and more", "model.bin should have 7 bytes and has more than 7"),
        (b"w", "model.bin should have 7 bytes and has 1"),
        (None, "model.bin is missing, or can't be read"),
    ],
)
async def test_a_damaged_checkpoint_is_refused_and_nothing_is_left(
    tmp_path: Path, damage: bytes | None, words: str
) -> None:
    volume = tmp_path / "volume"
    fill_volume(volume, checkpoint_name(1, 0))
    model = volume / FOLDER / "model.bin"
    if damage is None:
        model.unlink()
    else:
        model.write_bytes(damage)
    with pytest.raises(Corrupt, match=words):
        await taken(volume, tmp_path / "copy")
    assert below(tmp_path) == ["volume"]


async def test_a_conversation_that_breaks_leaves_nothing_that_looks_whole_and_is_gone_on_with(tmp_path: Path) -> None:
    volume, target = tmp_path / "volume", tmp_path / "copy"
    fill_volume(volume, checkpoint_name(1, 0), files=LARGE)
    with pytest.raises(StoreError, match="the connection broke"):
        await taken(volume, target, cut_after=1 << 20)
    assert not target.exists()
    await taken(volume, target)
    assert content(target) == LARGE
    assert below(tmp_path) == ["copy", "volume"]


async def test_a_file_that_the_pod_lacks_is_reported_with_the_pods_message(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no valid checkpoint of epoch 4 in"):
        await taken(tmp_path, tmp_path / "copy", epoch=4)


async def test_a_pod_that_says_something_else_is_not_believed(tmp_path: Path) -> None:
    target = tmp_path / "copy"
    with pytest.raises(StoreError, match="said 'Welcome!' instead of a checkpoint"):
        await said("Welcome!", target)
    with pytest.raises(StoreError, match=r"offers '../../etc', which is no checkpoint"):
        await said('{"attempt": 0, "leaf": "../../etc", "manifest": "{}"}', target)
    with pytest.raises(InvalidCheckpointManifest):
        await said('{"attempt": 0, "leaf": "checkpoint-epoch-1", "manifest": "{}"}', target)
    with pytest.raises(StoreError, match="the pod ended in the middle of the checkpoint"):
        async with pod(sys.executable, "-c", "") as attached:
            await receive_checkpoint(attached, lambda _name: target)
    assert not target.exists()


async def test_a_manifest_whose_paths_lead_elsewhere_is_refused(tmp_path: Path) -> None:
    file = '{\\"path\\": \\"../outside\\", \\"size\\": 1, \\"sha256\\": \\"' + "0" * 64 + '\\"}'
    facts = (
        '\\"version\\": 1, \\"epoch\\": 1, \\"attempt\\": 0, \\"job\\": \\"j\\", \\"savedAt\\": \\"\\", \\"world\\": 1'
    )
    manifest = "{" + facts + ', \\"files\\": [' + file + "]}"
    with pytest.raises(InvalidCheckpointManifest, match=r"outside' has an empty part, '.' or '..'"):
        await said('{"attempt": 0, "leaf": "checkpoint-epoch-1", "manifest": "' + manifest + '"}', tmp_path / "copy")
    assert below(tmp_path) == []
