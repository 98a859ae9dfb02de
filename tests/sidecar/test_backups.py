"""A sidecar that is asked for a backup: the training saves, and the checkpoint is in the registry as an image."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.api.backup_runs import BackupProgress, WantedBackup
from holdfast.api.credentials import CredentialRequest, RegistryCredential
from holdfast.checkpoints.images.image import LAYER_TYPE, ZSTD_LAYER_TYPE, ImageManifest, parse_manifest
from holdfast.checkpoints.images.layer import unpack_layer
from holdfast.checkpoints.manifest import CheckpointManifest, SaveInfo
from holdfast.checkpoints.volume_store import VolumeStore
from holdfast.local.registry.server import serve_registry
from holdfast.sidecar.backup_run import SidecarBackupRun
from holdfast.sidecar.backup_source import BackupSource
from holdfast.sidecar.persister import CheckpointPersister
from holdfast.sidecar.reporter import OperatorClient
from holdfast.sidecar.settings import Checkpoints, SidecarSettings
from holdfast.sidecar.storage import SecondaryVolume
from tests.checkpoints.servers.server import Server, s3
from tests.local.registry.registries import client
from tests.sidecar.operators import OperatorDouble, until
from tests.sidecar.pods import Pod, ended, peak_mib

REPOSITORY = "team/checkpoints"
TAG = "nightly-trainer-000003-20261118T120000Z"

# Saves after every epoch, each of them longer than the test, and when asked to within one.
SAVES_ON_NOTICE = """
import time
from holdfast import train

run = train.start()
for epoch in run.epochs(1000):
    for step in run.batches(range(100_000)):
        time.sleep(0.01)
        if run.due():
            with run.checkpoint() as folder:
                (folder / "model.bin").write_bytes(b"weights" * 100_000 + str(run.step).encode())
"""

# Saves once, and never looks for notices.
HEEDLESS = """
import os, time
from pathlib import Path

folder = Path(os.environ["CHECKPOINT_DIR"])
partial = folder / "checkpoint-epoch-1.tmp"
partial.mkdir(parents=True)
(partial / "model.bin").write_bytes(b"weights" * 100_000)
partial.rename(folder / "checkpoint-epoch-1")
time.sleep(1000)
"""


def wanted(host: str, *, seconds_left: float = 100.0, **more: Any) -> WantedBackup:
    fields: dict[str, Any] = {
        "namespace": "ml",
        "backup": "nightly",
        "uid": "backup-uid",
        "run": 3,
        "container": "trainer",
        "registry_url": host,
        "repository": REPOSITORY,
        "tag": TAG,
        "plain_http": True,
        "owner_uid": "backup-uid",
        "owner_kind": "CheckpointBackup",
        "owner_name": "nightly",
        "replica": "0",
        "attempt": 0,
        "pod_name": "digits-0",
        "pod_uid": "pod-uid",
    }
    return WantedBackup(**{**fields, **more}, seconds_left=seconds_left)


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[OperatorDouble]:
    async with OperatorDouble(tmp_path).serving() as serving:
        yield serving


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[str]:
    async with serve_registry(tmp_path / "registry") as host:
        yield host


@pytest.fixture(scope="module")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3(tmp_path_factory.mktemp("s3")) as running:
        yield running


@contextlib.asynccontextmanager
async def worker(
    tmp_path: Path, operator: OperatorDouble, script: str, **environ: str
) -> AsyncIterator[tuple[Pod, asyncio.subprocess.Process]]:
    async with Pod(tmp_path / "volume", tmp_path / "local", operator, environ=environ) as pod:
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        await pod.script(script)
        yield pod, sidecar


async def is_over(operator: OperatorDouble) -> None:
    await until(lambda: operator.backup is not None and operator.backup.is_final)


async def image(host: str, reference: str) -> ImageManifest:
    async with client(host) as registry:
        return parse_manifest(await registry.manifest(REPOSITORY, reference), reference)


async def unpacked(host: str, reference: str, target: Path) -> CheckpointManifest:
    found = await image(host, reference)
    async with client(host) as registry:
        chunks = [chunk async for chunk in registry.blob(REPOSITORY, found.layers[0])]
    return await asyncio.to_thread(unpack_layer, chunks, found.layers[0], target)


async def test_a_training_that_saves_on_request_is_saved_and_pushed(
    tmp_path: Path, operator: OperatorDouble, registry: str
) -> None:
    async with worker(tmp_path, operator, SAVES_ON_NOTICE) as (pod, _):
        await until(pod.heeded.exists, "it looks for notices")
        operator.wanted = wanted(registry)
        await is_over(operator)
        told = operator.backup
        assert told is not None
        assert told.state == "pushed", told
        assert told.image == f"{registry}/{REPOSITORY}:{TAG}"
        assert told.message == ""
        assert told.checkpoint == str(pod.checkpoint_dir / "checkpoint-epoch-1")
    found = await image(registry, told.digest)
    assert found == await image(registry, TAG)
    labels = {name.removeprefix("dev.holdfast."): value for name, value in found.annotations.items()}
    assert {
        "mode": "application",
        "owner-uid": "backup-uid",
        "run": "3",
        "container": "trainer",
    }.items() <= labels.items()
    assert not any(name.startswith("org.criu") or "cri-o" in name for name in found.annotations)
    assert (len(found.layers), found.layers[0].media_type, found.layers[0].size) == (1, LAYER_TYPE, told.bytes)
    manifest = await unpacked(registry, TAG, tmp_path / "back")
    assert manifest.about.saved_at == told.saved_at
    assert (tmp_path / "back" / "model.bin").read_bytes().startswith(b"weights")
    assert operator.credential_requests == [
        CredentialRequest(namespace="ml", backup="nightly", uid="backup-uid", run=3)
    ]


async def test_the_newest_checkpoint_is_taken_of_a_training_that_does_not_save_on_request(
    tmp_path: Path, operator: OperatorDouble, registry: str
) -> None:
    async with worker(tmp_path, operator, HEEDLESS):
        operator.wanted = wanted(registry)
        await is_over(operator)
    told = operator.backup
    assert told is not None
    assert told.state == "pushed", told
    assert "does not save on request" in told.message
    assert "the newest checkpoint is taken" in told.message
    assert (await unpacked(registry, TAG, tmp_path / "back")).epoch == 1


async def test_a_compressed_layer_is_marked_so_and_comes_back(
    tmp_path: Path, operator: OperatorDouble, registry: str
) -> None:
    async with worker(tmp_path, operator, HEEDLESS) as (pod, _):
        operator.wanted = wanted(registry, compression="zstd")
        await is_over(operator)
        assert operator.backup is not None
        assert operator.backup.bytes < 70_000
        assert [path.name for path in pod.root.iterdir() if path.name.startswith(".holdfast-backup")] == []
    assert (await image(registry, TAG)).layers[0].media_type == ZSTD_LAYER_TYPE
    await unpacked(registry, TAG, tmp_path / "back")
    assert (tmp_path / "back" / "model.bin").read_bytes() == b"weights" * 100_000


async def test_how_a_run_ended_is_repeated_while_it_is_wanted_and_it_is_not_carried_out_again(
    tmp_path: Path, operator: OperatorDouble, registry: str
) -> None:
    async with worker(tmp_path, operator, HEEDLESS):
        operator.wanted = wanted(registry)
        await is_over(operator)
        heard = len(operator.bodies)
        await until(lambda: len(operator.bodies) >= heard + 2)
        assert all(body.backup is not None and body.backup.state == "pushed" for body in operator.bodies[heard:])
        operator.wanted = None
        await until(lambda: operator.bodies[-1].backup is None)
        operator.wanted = wanted(registry)
        await until(lambda: operator.bodies[-1].backup is not None)
        assert operator.bodies[-1].backup == operator.backup
        assert len(operator.credential_requests) == 1


async def test_a_sidecar_that_was_killed_after_the_push_finds_the_image_and_reports_it(
    tmp_path: Path, operator: OperatorDouble, registry: str
) -> None:
    async with worker(tmp_path, operator, HEEDLESS) as (pod, sidecar):
        operator.wanted = wanted(registry)
        await is_over(operator)
        first = operator.backup
        await ended(sidecar, signal.SIGKILL)
        operator.bodies.clear()
        await pod.sidecar()
        await is_over(operator)
        second = operator.backup
    assert first is not None
    assert second is not None
    assert (second.state, second.digest, second.bytes) == ("pushed", first.digest, first.bytes)


async def test_a_sidecar_that_is_killed_while_it_pushes_pushes_the_same_image_after_its_restart(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    async with worker(tmp_path, operator, HEEDLESS) as (pod, sidecar):
        (tmp_path / "registry").mkdir()
        async with serve_registry(tmp_path / "registry") as host:
            pass
        operator.wanted = wanted(host)  # which is down
        await until(lambda: operator.backup is not None and operator.backup.state == "pushing")
        await ended(sidecar, signal.SIGKILL)
        await pod.sidecar()
        async with serve_registry(tmp_path / "registry") as again:
            assert again == host
            await is_over(operator)
            assert operator.backup is not None
            assert operator.backup.state == "pushed", operator.backup
            await unpacked(host, TAG, tmp_path / "back")


async def test_a_registry_that_is_down_is_tried_again_until_it_is_back(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    async with serve_registry(tmp_path / "registry") as host:
        pass
    async with worker(tmp_path, operator, HEEDLESS):
        operator.wanted = wanted(host)
        await until(lambda: operator.backup is not None and operator.backup.state == "pushing")
        async with serve_registry(tmp_path / "registry"):
            await is_over(operator)
    assert operator.backup is not None
    assert operator.backup.state == "pushed", operator.backup


async def test_a_run_ends_at_its_deadline_and_may_be_tried_again(tmp_path: Path, operator: OperatorDouble) -> None:
    async with serve_registry(tmp_path / "registry") as host:
        pass
    async with worker(tmp_path, operator, HEEDLESS):
        operator.wanted = wanted(host, seconds_left=3.0)
        await is_over(operator)
    assert operator.backup is not None
    assert (operator.backup.state, operator.backup.is_retryable) == ("failed", True)
    assert operator.backup.reason in ("DeadlineExceeded", "RegistryUnreachable")


async def test_a_training_without_a_checkpoint_is_waited_for_until_the_deadline(
    tmp_path: Path, operator: OperatorDouble, registry: str
) -> None:
    async with worker(tmp_path, operator, "import time; time.sleep(1000)"):
        operator.wanted = wanted(registry, seconds_left=3.0)
        await is_over(operator)
    assert operator.backup is not None
    assert (operator.backup.state, operator.backup.reason) == ("failed", "DeadlineExceeded")
    assert "waiting for a complete checkpoint" in operator.backup.message


async def test_a_refused_credential_fails_the_run_with_the_operators_words(
    tmp_path: Path, operator: OperatorDouble, registry: str
) -> None:
    operator.credential_status = 404
    async with worker(tmp_path, operator, HEEDLESS):
        operator.wanted = wanted(registry)
        await is_over(operator)
    assert operator.backup is not None
    assert (operator.backup.state, operator.backup.reason) == ("failed", "CredentialRefused")
    assert "there is no Secret ml/login: create it" in operator.backup.message


async def test_a_credential_that_is_not_to_be_had_yet_is_waited_for(
    tmp_path: Path, operator: OperatorDouble, registry: str
) -> None:
    operator.credential_status = 503
    async with worker(tmp_path, operator, HEEDLESS):
        operator.wanted = wanted(registry)
        await until(lambda: len(operator.credential_requests) >= 2)
        operator.credential_status = 200
        await is_over(operator)
    assert operator.backup is not None
    assert operator.backup.state == "pushed"


async def test_no_password_is_in_a_log_or_a_report(tmp_path: Path, operator: OperatorDouble, registry: str) -> None:
    operator.credential = RegistryCredential(username="ada", password="s3cret-of-ada")
    async with worker(tmp_path, operator, HEEDLESS, LOG_LEVEL="debug") as (pod, _):
        operator.wanted = wanted(registry.replace("127.0.0.1", "localhost"), plain_http=False)
        await is_over(operator)
        assert operator.backup is not None
        assert operator.backup.state == "failed"
        assert "does not speak TLS" in operator.backup.message
        assert "s3cret-of-ada" not in pod.log("sidecar")
    assert b"s3cret-of-ada" not in msgspec.json.encode(operator.bodies)


async def test_an_operator_that_is_away_while_the_image_is_pushed_hears_of_it_when_it_is_back(
    tmp_path: Path, operator: OperatorDouble, registry: str
) -> None:
    async with worker(tmp_path, operator, HEEDLESS):
        operator.wanted = wanted(registry)
        await until(lambda: operator.credential_requests)
        operator.status, operator.wanted = 503, None
        heard = len(operator.bodies)
        await until((tmp_path / "registry" / "repositories" / REPOSITORY / "_tags" / TAG).exists)
        operator.status = 200
        await until(lambda: any(body.backup and body.backup.state == "pushed" for body in operator.bodies[heard:]))


async def test_a_withdrawn_run_stops_and_pushes_nothing(tmp_path: Path, operator: OperatorDouble) -> None:
    async with serve_registry(tmp_path / "registry") as host:
        pass
    async with worker(tmp_path, operator, HEEDLESS) as (pod, _):
        operator.wanted = wanted(host)
        await until(lambda: operator.backup is not None and operator.backup.state == "pushing")
        operator.wanted, operator.withdrawn = None, True
        await until(lambda: operator.bodies[-1].backup is None)
        assert "backup stopped" in pod.log("sidecar")
        operator.withdrawn = False
        async with serve_registry(tmp_path / "registry"), client(host) as reader:
            heard = len(operator.bodies)
            await until(lambda: len(operator.bodies) >= heard + 2)
            assert await reader.tags(REPOSITORY) == []


async def test_a_worker_with_a_part_of_the_checkpoint_names_the_one_with_all_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "attempt-0"
    checkpoints = Checkpoints(folder=folder, resume_link=tmp_path / "attempt-0.resume", store="s3://bucket/prefix")
    settings = SidecarSettings(job="digits", namespace="ml", uid="uid-1", attempt=0, index=1, checkpoints=checkpoints)
    backend = SecondaryVolume(folder)
    persister = CheckpointPersister(
        backend,
        keep=3,
        needed=set(),
        about=lambda: SaveInfo("uid-1", "2026-11-18T12:00:00Z"),
        on_checkpoint=lambda _: None,
        wall=lambda: 0.0,
        is_over=lambda: False,
    )
    source = BackupSource(settings, checkpoints, persister, backend, lambda: VolumeStore(tmp_path), lambda: False)
    told: list[BackupProgress] = []

    async def open_source() -> BackupSource:
        return source

    async with OperatorClient(tmp_path / "reports.json", tmp_path / "token") as operator:
        await SidecarBackupRun(wanted("registry.example.com"), open_source, operator, told.append).run()
    assert [each.state for each in told] == ["accepted", "failed"]
    assert told[-1].reason == "NotWorkerZero"
    assert "name the pod of worker 0 in podRef" in told[-1].message


async def test_a_large_backup_takes_little_memory_and_no_backup_takes_none(
    tmp_path: Path, operator: OperatorDouble, registry: str
) -> None:
    large = HEEDLESS.replace('b"weights" * 100_000', "os.urandom(1 << 20) * 200")
    async with worker(tmp_path, operator, large) as (_, sidecar):
        await until(lambda: operator.outcomes("completed") == [1])
        before_mib = peak_mib(sidecar.pid)
        operator.wanted = wanted(registry)
        await is_over(operator)
        assert operator.backup is not None
        assert operator.backup.state == "pushed"
        assert operator.backup.bytes > 200 << 20
        assert peak_mib(sidecar.pid) - before_mib < 40


SHARD = """
import os, time
from pathlib import Path

folder = Path(os.environ["CHECKPOINT_DIR"]) / "checkpoint-epoch-1"
partial = folder.with_name("checkpoint-epoch-1.tmp")
partial.mkdir(parents=True)
(partial / "shard-0").write_bytes(b"weights" * 1000)
partial.rename(folder)
time.sleep(1000)
"""


async def test_a_checkpoint_of_an_object_store_is_packed_whole_though_a_part_of_it_is_not_in_the_pod(
    tmp_path: Path, operator: OperatorDouble, registry: str, object_store: Server
) -> None:
    address = object_store.address("packed-whole")
    environ = {**object_store.environ, "HOLDFAST_STORE": address}
    async with worker(tmp_path, operator, SHARD, **environ) as (pod, _):
        await until(lambda: operator.outcomes("uploaded") == [1])
        # As if another worker had saved it: the store has the file, and this pod has not.
        (pod.checkpoint_dir / "checkpoint-epoch-1" / "shard-0").rename(tmp_path / "elsewhere")
        (pod.checkpoint_dir / "checkpoint-epoch-1" / "other").write_bytes(b"x")
        (pod.checkpoint_dir / "checkpoint-epoch-1" / ".holdfast-uploaded").touch()
        operator.wanted = wanted(registry)
        await is_over(operator)
        assert operator.backup is not None
        assert operator.backup.state == "pushed", operator.backup
        assert [path.name for path in pod.root.iterdir() if path.name.startswith(".holdfast-backup")] == []
    manifest = await unpacked(registry, TAG, tmp_path / "back")
    assert (tmp_path / "back" / "shard-0").read_bytes() == b"weights" * 1000
    assert [(file.path, file.stored_at) for file in manifest.files] == [("shard-0", "")]


def test_a_sidecar_loads_no_client_of_registries_until_it_needs_one() -> None:
    look = "import sys, holdfast.sidecar.sidecar; print([name for name in sys.modules if '.images.' in name])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['holdfast.checkpoints.images.errors']"
