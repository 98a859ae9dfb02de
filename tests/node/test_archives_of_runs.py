"""Archives that must not be pushed: nothing reaches the registry, and nothing stays on the node."""

import asyncio
import errno
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from aiohttp import web

from holdfast.checkpoints import files
from holdfast.node.archives import ArchiveFolder
from tests.checkpoints.images.archives import FILES, member, write_archive
from tests.node.kubelets import Answering
from tests.node.lab import AgentLab

Writing = Callable[[Path], object]


def saves_as(write: Writing) -> Answering:
    async def answer(request: web.Request, archive: Path) -> web.StreamResponse:
        await asyncio.to_thread(write, archive)
        return web.json_response({"items": [str(archive)]})

    return answer


def with_member(name: str, change: Callable[[tarfile.TarInfo], object]) -> Writing:
    info, _ = member(name, b"", change)
    return lambda path: write_archive(path, more=((info, b""),))


def link(info: tarfile.TarInfo) -> None:
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/shadow"


def device(info: tarfile.TarInfo) -> None:
    info.type = tarfile.CHRTYPE


def truncated(path: Path) -> None:
    content = write_archive(path).read_bytes()
    path.write_bytes(content[: len(content) // 2])


REFUSED: dict[str, tuple[Writing, str]] = {
    "truncated": (truncated, "ends after"),
    "a link": (with_member("checkpoint/secret", link), "is a symbolic link"),
    "a device": (with_member("checkpoint/null", device), "is a device"),
    "a path that leaves it": (with_member("../../etc/cron.d/x", lambda info: None), "leaves the archive"),
    "incomplete": (
        lambda path: write_archive(path, {name: FILES[name] for name in FILES if name != "spec.dump"}),
        "lacks spec.dump",
    ),
    "a link itself": (lambda path: path.symlink_to("/etc/hostname"), "not a regular file"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_an_archive_that_is_not_whole_or_not_safe_is_not_pushed_and_removed(lab: AgentLab, case: str) -> None:
    write, words = REFUSED[case]
    await lab.start()
    await lab.begin()
    lab.kubelet.script = [saves_as(write)]
    async with lab.agent():
        status = await lab.ended()
    assert status.phase == "Failed"
    assert status.conditions[0].reason == "ArchiveRefused"
    assert status.message is not None
    assert words in status.message
    assert await lab.pulled() == {}
    assert lab.leftovers() == []
    assert lab.credentials.requests == [], "a credential is asked for only when there is something to push"


@pytest.mark.parametrize("place", ["elsewhere/checkpoint.tar", "checkpoints/../elsewhere/checkpoint.tar"])
async def test_a_path_outside_the_folder_is_neither_read_nor_removed(lab: AgentLab, place: str) -> None:
    (lab.folder / "elsewhere").mkdir()
    target = write_archive(lab.folder / "elsewhere/checkpoint.tar")
    await lab.start()
    await lab.begin()

    async def answer(request: web.Request, archive: Path) -> web.StreamResponse:
        return web.json_response({"items": [f"{lab.folder}/{place}"]})

    lab.kubelet.script = [answer]
    async with lab.agent():
        status = await lab.ended()
    assert status.conditions[0].reason == "ArchiveRefused"
    assert status.message is not None
    assert "--checkpoints-folder" in status.message
    assert await asyncio.to_thread(target.exists)


async def test_a_compressed_layer_is_pushed_and_the_file_removed(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin(compression="zstd")
    async with lab.agent():
        status = await lab.ended()
    assert status.phase == "Completed"
    assert lab.leftovers() == []
    (tag,) = await lab.pulled()
    async with lab.registry.client() as client:
        assert b"layer.v1.tar+zstd" in await client.manifest(lab.repository, tag)


async def test_memory_that_hardly_shrinks_is_left_as_it_is(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin(compression="zstd")
    noise = {"checkpoint/pages-1.img": Random(1).randbytes(1 << 20)}
    lab.kubelet.script = [saves_as(lambda path: write_archive(path, {**FILES, **noise}))]
    async with lab.agent():
        status = await lab.ended()
    assert status.phase == "Completed"
    (tag,) = await lab.pulled()
    async with lab.registry.client() as client:
        assert b"+zstd" not in await client.manifest(lab.repository, tag)


class FullDisk:
    """Stands for `os` in the module that writes: files with such a name find no space."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def write(self, descriptor: int, data: memoryview) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name.endswith(self._suffix):
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(descriptor, data)


class SmallWork(ArchiveFolder):
    """The agent's own folder is on a small disk, and the kubelet's is not."""

    def work_free_bytes(self) -> int:
        return 1 << 10


@pytest.mark.parametrize("suffix", [".tar.zst", ".json"], ids=["compressed layer", "journal"])
async def test_a_disk_that_is_full_before_the_push_fails_the_run_with_what_is_free_and_needed(
    lab: AgentLab, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    await lab.start()
    await lab.begin(compression="zstd")
    async with lab.agent():
        with monkeypatch.context() as patch:
            patch.setattr(files, "os", FullDisk(suffix))
            status = await lab.ended()
    assert status.conditions[0].reason == "DiskFull"
    assert status.message is not None
    assert f"{lab.journal} has " in status.message
    assert "free, and " in status.message
    assert "a checkpoint takes about three times its size" in status.message
    assert lab.leftovers() == []
    assert await lab.pulled() == {}


async def test_a_compressed_layer_needs_room_in_the_agents_own_folder(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin(compression="zstd")
    async with lab.agent(archives=SmallWork(lab.checkpoints, lab.journal)):
        status = await lab.ended()
    assert status.conditions[0].reason == "DiskFull"
    assert status.message is not None
    assert f"{lab.journal} has 1 KiB free, and about " in status.message
    assert lab.leftovers() == []
