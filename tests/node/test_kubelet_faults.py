"""What the kubelet or the container runtime refuses, and what the CheckpointBackup then says."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from aiohttp import web

from holdfast.api.meta import Key, is_true
from holdfast.cluster.resources import PODS
from holdfast.node.archives import ArchiveFolder
from holdfast.times import format_time
from tests.checkpoints.images.archives import FILES, write_archive
from tests.node.kubelets import Answering, answers, breaks_off, in_pieces
from tests.node.lab import AgentLab


class Refusal(NamedTuple):
    status: int
    text: str
    reason: str
    words: tuple[str, ...]


def runtime_error(text: str) -> str:
    return f"checkpointing of team/numbers/trainer failed (rpc error: code = Unknown desc = {text})"


REFUSALS = (
    Refusal(401, "Unauthorized", "KubeletUnauthorized", ("authentication.webhook",)),
    Refusal(
        403,
        "Forbidden (user=system:serviceaccount:x:y, verb=create, resource=nodes, subresource(s)=[checkpoint proxy])",
        "KubeletForbidden",
        ("create", "nodes/checkpoint", "subresource(s)=[checkpoint proxy]"),
    ),
    Refusal(404, "404 page not found", "CheckpointDisabled", ("feature gate ContainerCheckpoint",)),
    Refusal(
        500,
        "checkpointing of x failed (rpc error: code = Unimplemented desc = method CheckpointContainer not implemented)",
        "CheckpointNotSupported",
        ("method CheckpointContainer not implemented", "containerd 2.1", "mode application"),
    ),
    Refusal(
        500, runtime_error("CRIU binary not found or too old (<31600)"), "CriuMissing", ("install CRIU", "too old")
    ),
    Refusal(
        500,
        runtime_error("criu failed: type NOTIFY errno 0, log file: /run/dump.log"),
        "CheckpointFailed",
        ("criu failed: type NOTIFY", "dump.log", "mode application"),
    ),
    Refusal(500, runtime_error("context deadline exceeded"), "CheckpointTimeout", ("spec.timeoutSeconds",)),
    Refusal(
        500,
        runtime_error("write /var/lib/kubelet/checkpoints/x.tar: no space left on device"),
        "DiskFull",
        ("no space left", "free", "needed"),
    ),
)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: f"{refusal.status}-{refusal.reason}")
async def test_a_refusal_of_the_kubelet_fails_the_run_with_what_would_help(lab: AgentLab, refusal: Refusal) -> None:
    await lab.start()
    await lab.begin()
    # A 401 is tried once more with a fresh token; nothing else is tried again.
    lab.kubelet.script = [answers(refusal.status, refusal.text)] * 5
    async with lab.agent():
        status = await lab.ended()
    assert status.phase == "Failed"
    assert is_true(status.conditions, "Failed")
    assert {condition.reason for condition in status.conditions} == {refusal.reason}
    assert status.message is not None
    for word in refusal.words:
        assert word in status.message
    assert len(lab.kubelet.calls) == (2 if refusal.status == 401 else 1)
    assert await lab.pulled() == {}
    assert lab.leftovers() == []
    ((reason, message),) = await lab.events()
    assert (reason, refusal.words[0] in message) == ("Failed", True)


async def test_a_refusal_that_comes_in_pieces_is_judged_by_its_end(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()

    async def answer(request: web.Request, archive: Path) -> web.StreamResponse:
        text = runtime_error(f"{'. ' * 200}write /var/lib/kubelet/checkpoints/x.tar: no space left on device")
        return await in_pieces(request, 500, text.encode(), 4)

    lab.kubelet.script = [answer]
    async with lab.agent():
        status = await lab.ended()
    assert status.conditions[0].reason == "DiskFull"


async def test_a_404_of_a_container_that_does_not_run_any_more_is_told_as_that(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()

    async def stops(request: web.Request, archive: object) -> web.StreamResponse:
        ended = {"name": "trainer", "image": "x", "imageID": "y", "ready": False, "restartCount": 0}
        state = {"terminated": {"exitCode": 0, "startedAt": None, "finishedAt": None}}
        status = {"containerStatuses": [{**ended, "state": state}]}
        await lab.plain.patch_status(PODS, Key(lab.namespace, "numbers"), {"status": status})
        return web.Response(status=404, text="container not found")

    lab.kubelet.script = [stops]
    async with lab.agent():
        status = await lab.ended()
    assert status.conditions[0].reason == "ContainerUnknown"


async def test_what_the_runtime_says_of_a_container_with_gpus_comes_with_what_cuda_needs(lab: AgentLab) -> None:
    await lab.start(trainer={"resources": {"limits": {"nvidia.com/gpu": 1}}})
    await lab.begin()
    lab.kubelet.script = [answers(500, runtime_error("criu failed: type NOTIFY errno 0"))]
    async with lab.agent():
        status = await lab.ended()
    assert status.message is not None
    assert "criu failed: type NOTIFY" in status.message
    assert "driver 570" in status.message
    assert "CUDA plugin" in status.message


async def test_a_kubelet_that_dies_in_the_middle_is_asked_again_when_it_is_back(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    lab.kubelet.script = [breaks_off, answers(503, "starting"), breaks_off]
    async with lab.agent():
        status = await lab.ended()
    assert status.phase == "Completed"
    assert len(lab.kubelet.calls) == 4
    assert lab.leftovers() == []
    assert len(await lab.pulled()) == 1


async def test_a_kubelet_that_stays_away_is_asked_until_the_deadline(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    began = datetime.now(UTC) - timedelta(seconds=592)
    await lab.begin_run(run=2, startTime=format_time(began))
    lab.kubelet.script = [breaks_off] * 100
    async with lab.agent():
        status = await lab.ended()
    assert status.conditions[0].reason == "DeadlineExceeded"
    assert status.message is not None
    assert "the connection to the kubelet broke" in status.message
    assert lab.leftovers() == []


async def test_a_kubelet_that_never_answers_is_given_up_at_the_deadline(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    began = datetime.now(UTC) - timedelta(seconds=598)
    await lab.begin_run(run=2, startTime=format_time(began))

    async def hangs(request: web.Request, archive: object) -> web.StreamResponse:
        await asyncio.sleep(3600)
        return web.Response()

    lab.kubelet.script = [hangs]
    async with lab.agent():
        status = await lab.ended()
    assert status.phase == "Failed"
    assert status.conditions[0].reason == "DeadlineExceeded"
    assert status.message is not None
    assert "freezing container trainer" in status.message


class SmallDisk(ArchiveFolder):
    def free_bytes(self) -> int:
        return 100 << 20


async def test_a_disk_that_the_last_size_would_fill_is_told_before_anything_is_frozen(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    await lab.begin_run(run=2, bytes=50 << 20)
    async with lab.agent(archives=SmallDisk(lab.checkpoints, lab.journal)):
        status = await lab.ended()
    assert status.conditions[0].reason == "DiskFull"
    assert status.message is not None
    assert "100 MiB free" in status.message
    assert "150 MiB are needed" in status.message
    assert lab.kubelet.calls == []


async def test_the_size_of_a_compressed_checkpoint_is_judged_by_its_archive(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin(compression="zstd")

    async def compressible(request: web.Request, archive: Path) -> web.StreamResponse:
        await asyncio.to_thread(write_archive, archive, {**FILES, "checkpoint/pages-1.img": bytes(40 << 20)})
        return web.json_response({"items": [str(archive)]})

    lab.kubelet.script = [compressible]
    async with lab.agent(archives=SmallDisk(lab.checkpoints, lab.journal)):
        first = await lab.ended()
        assert (first.phase, first.bytes < 1 << 20) == ("Completed", True)
        await lab.begin_run(run=2, bytes=first.bytes)
        status = await lab.until(lambda status: status.run == 2 and status.phase == "Failed", "it fails")
    assert status.conditions[0].reason == "DiskFull"
    assert status.message is not None
    assert "100 MiB free, and about 120 MiB are needed" in status.message
    assert len(lab.kubelet.calls) == 1


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"limits": {"memory": "2Gi"}}, "has 100 MiB free, and about 6 GiB are needed"),
        ({"requests": {"memory": "1Gi"}}, "has 100 MiB free, and about 3 GiB are needed"),
        ({"limits": {"memory": "8Mi"}}, "has 100 MiB free, and more was needed a moment ago"),
        ({}, "has 100 MiB free, and more was needed a moment ago"),
    ],
)
async def test_a_disk_that_is_full_in_the_first_freeze_is_told_with_what_the_memory_needs(
    lab: AgentLab, resources: dict[str, object], said: str
) -> None:
    await lab.start(trainer={"resources": resources})
    await lab.begin()
    lab.kubelet.script = [answers(500, runtime_error("write x.tar: no space left on device"))]
    async with lab.agent(archives=SmallDisk(lab.checkpoints, lab.journal)):
        status = await lab.ended()
    assert status.conditions[0].reason == "DiskFull"
    assert status.message is not None
    assert said in status.message


@pytest.mark.parametrize("answer", [answers(200, "{}"), answers(200, "not JSON")])
async def test_an_answer_without_an_archive_is_a_failure(lab: AgentLab, answer: Answering) -> None:
    await lab.start()
    await lab.begin()
    lab.kubelet.script = [answer]
    async with lab.agent():
        status = await lab.ended()
    assert status.phase == "Failed"
    assert status.message is not None
    assert "names no archive" in status.message
