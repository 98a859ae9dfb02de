"""`holdfast sidecar` with an object store: what the training saves outlives the pod and its disk."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from holdfast.checkpoints.manifest import SaveInfo, checkpoint_name
from holdfast.checkpoints.object_store import ObjectStore
from holdfast.checkpoints.resume import write_decision
from holdfast.checkpoints.settings import open_bucket
from tests.checkpoints.servers.server import Server, s3
from tests.sidecar.operators import OperatorDouble, until
from tests.sidecar.pods import Pod, done, ended, peak_mib

# Its upload takes a moment.
MANY = {f"shard-{number}": bytes([number]) * 20_000 for number in range(200)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[OperatorDouble]:
    folder = tmp_path / "operator"
    folder.mkdir()
    async with OperatorDouble(folder).serving() as double:
        yield double


def pod_with(
    server: Server, address: str, folder: Path, operator: OperatorDouble, *, attempt: int = 0, **more: str
) -> Pod:
    environ = {**server.environ, "HOLDFAST_STORE": address, **more}
    index = int(more.get("HOLDFAST_INDEX", "0"))
    return Pod(folder / "checkpoints", folder, operator, attempt=attempt, index=index, environ=environ)


def store_at(server: Server, address: str) -> ObjectStore:
    return ObjectStore(open_bucket(address, server.environ))


async def test_a_new_pod_on_another_node_goes_on_from_what_was_uploaded(
    tmp_path: Path, operator: OperatorDouble, server: Server
) -> None:
    address = server.address("goes-on")
    async with pod_with(server, address, tmp_path / "pod-0", operator) as pod:
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        assert await done(await pod.trainer(EPOCHS="5")) == 0, pod.log("trainer")
        await until(lambda: {3, 4, 5} <= set(operator.outcomes("uploaded")))
        assert await ended(sidecar) == 0, pod.log("sidecar")
    shutil.rmtree(tmp_path / "pod-0")
    async with pod_with(server, address, tmp_path / "pod-1", operator, attempt=1) as pod:
        await pod.sidecar()
        await pod.answers("/started", 200)
        assert pod.resume_from.resolve() == pod.checkpoint_dir / "checkpoint-epoch-5"
        assert await done(await pod.trainer(EPOCHS="6")) == 0, pod.log("trainer")
        await until(lambda: 6 in operator.outcomes("uploaded"))
        store = store_at(server, address)
        await until(lambda: [name.epoch for name in store.names(1)] == [6, 5, 4])
    assert store.verify(checkpoint_name(6, 1)).attempt == 1
    assert [batch.resumed.path for batch in operator.batches if batch.resumed] == [
        f"{address}/attempt-0/checkpoint-epoch-5"
    ]
    assert not [entry for entry in operator.checkpoints if entry.epoch == 5 and "attempt-1" in entry.path]


async def test_the_best_of_a_plain_script_stays_in_the_store_with_the_newest(
    tmp_path: Path, operator: OperatorDouble, server: Server
) -> None:
    """Its metrics are in its progress alone; all its saves are there at the first look."""
    address = server.address("best")
    pod_of_job = pod_with(
        server, address, tmp_path / "pod", operator, HOLDFAST_RETENTION="1", HOLDFAST_BEST_BY="accuracy"
    )
    async with pod_of_job as pod:
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        with pod.progress_file.open("w") as progress:
            for epoch, accuracy in enumerate([0.5, 0.9, 0.7, 0.8], start=1):
                progress.write(json.dumps({"epoch": epoch, "accuracy": accuracy, "loss": accuracy}) + "\n")
        await until(lambda: 4 in operator.epochs)
        for epoch in (1, 2, 3, 4):
            save(pod.checkpoint_dir, epoch, {"model.bin": b"weights"})
        store = store_at(server, address)
        await until(lambda: [name.epoch for name in store.names(0)] == [4, 2])
        best = f"{address}/attempt-0/checkpoint-epoch-2"
        await until(lambda: any((entry.valid_count, entry.best) == (2, best) for entry in operator.checkpoints))
        assert await ended(sidecar) == 0, pod.log("sidecar")
    assert store.verify(checkpoint_name(2, 0)).metrics == {"accuracy": 0.9, "loss": 0.9}


async def test_what_is_complete_when_the_training_ends_is_uploaded_within_the_grace_period(
    tmp_path: Path, operator: OperatorDouble, server: Server
) -> None:
    address = server.address("grace")
    async with pod_with(server, address, tmp_path / "pod", operator) as pod:
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        save(pod.checkpoint_dir, 1, {"model.bin": b"weights" * 100_000})
        (pod.checkpoint_dir / "checkpoint-epoch-2").mkdir()
        (pod.checkpoint_dir / "checkpoint-epoch-2" / "model.bin").write_text("half of wei")
        assert await ended(sidecar) == 0, pod.log("sidecar")
    store = store_at(server, address)
    assert store.verify(checkpoint_name(1, 0))
    assert store.manifest(checkpoint_name(2, 0)) is None, (
        "a training that ended in the middle of a save has saved nothing"
    )
    assert operator.outcomes("uploaded") == [1]


async def test_a_sidecar_killed_during_an_upload_goes_on_with_it(
    tmp_path: Path, operator: OperatorDouble, server: Server
) -> None:
    address = server.address("killed")
    store = store_at(server, address)
    async with pod_with(server, address, tmp_path / "pod", operator) as pod:
        first = await pod.sidecar()
        await pod.answers("/started", 200)
        save(pod.checkpoint_dir, 1, MANY)
        await until(lambda: bool(store.names(0)))
        first.kill()
        assert await done(first) == -9
        await pod.sidecar()
        await pod.answers("/started", 200)
        await until(lambda: 1 in operator.outcomes("uploaded"))
    assert len(store.verify(checkpoint_name(1, 0)).files) == 200


async def test_each_worker_uploads_its_shards_and_gets_all_of_them_back(
    tmp_path: Path, operator: OperatorDouble, server: Server
) -> None:
    address = server.address("shards")

    def worker(attempt: int, index: int) -> Pod:
        more = {"HOLDFAST_INDEX": str(index), "HOLDFAST_WORKERS": "2"}
        return pod_with(server, address, tmp_path / f"pod-{attempt}-{index}", operator, attempt=attempt, **more)

    async with worker(0, 0) as zero, worker(0, 1) as one:
        for rank, pod in enumerate((zero, one)):
            await pod.sidecar()
            await pod.answers("/started", 200)
            folder = pod.checkpoint_dir / "checkpoint-epoch-4"
            folder.mkdir()
            (folder / f"shard-{rank}").write_text(f"of {rank}")
            (folder / f".holdfast-complete-{rank}").write_text(f'{{"shards": 2, "ranks": [{rank}]}}')
        store = store_at(server, address)
        await until(lambda: store.manifest(checkpoint_name(4, 0)) is not None)
        await until(lambda: operator.outcomes("uploaded") == [4])
        assert {batch.index for batch in operator.batches if batch.checkpoints} == {0}, "a part is no checkpoint"
    async with worker(1, 1) as one, worker(1, 0) as zero:
        await one.sidecar()
        await zero.sidecar()
        for pod in (zero, one):
            await pod.answers("/started", 200)
            assert [(pod.resume_from / f"shard-{rank}").read_text() for rank in (0, 1)] == ["of 0", "of 1"]


@pytest.mark.parametrize("elastic", [False, True], ids=["suspended", "elastic"])
async def test_an_attempt_goes_on_with_all_its_workers_where_it_was(
    tmp_path: Path, operator: OperatorDouble, server: Server, elastic: bool
) -> None:
    """When its workers were told to go, or, in an elastic one, when one failed and is replaced."""
    address = server.address(f"goes-on-{elastic}")

    def worker(start: int, index: int) -> Pod:
        folder = tmp_path / f"pod-{start}-{index}"
        replaces = "true" if elastic else ""
        return pod_with(
            server,
            address,
            folder,
            operator,
            HOLDFAST_INDEX=str(index),
            HOLDFAST_WORKERS="2",
            HOLDFAST_ELASTIC=replaces,
        )

    async with worker(0, 0) as zero:
        sidecar = await zero.sidecar()
        await zero.answers("/started", 200)
        save(zero.checkpoint_dir, 3, {"model.bin": b"weights"})
        if not elastic:
            assert (await zero.ask("/prestop"))[0] == 200
        assert await ended(sidecar) == 0, zero.log("sidecar")
    async with worker(1, 1) as one, worker(1, 0) as zero:
        await one.sidecar()
        await until(lambda: any(batch.index for batch in operator.batches))
        assert (await one.ask("/started"))[0] == 503, "worker 0 has not decided yet"
        await zero.sidecar()
        for pod in (zero, one):
            await pod.answers("/started", 200)
            assert (pod.resume_from / "model.bin").read_bytes() == b"weights"


async def test_a_worker_that_starts_when_the_first_has_ended_begins_with_what_that_one_had(
    tmp_path: Path, operator: OperatorDouble, server: Server
) -> None:
    address = server.address("late")
    async with pod_with(server, address, tmp_path / "zero", operator, HOLDFAST_WORKERS="2") as zero:
        sidecar = await zero.sidecar()
        await zero.answers("/started", 200)
        save(zero.checkpoint_dir, 3, {"model.bin": b"weights"})
        assert await ended(sidecar) == 0, zero.log("sidecar")
    late = pod_with(server, address, tmp_path / "one", operator, HOLDFAST_INDEX="1", HOLDFAST_WORKERS="2")
    async with late as one:
        await one.sidecar()
        await one.answers("/started", 200)
        assert not one.resume_from.exists()


async def test_a_job_without_checkpoints_begins_with_the_one_that_its_spec_names(
    tmp_path: Path, operator: OperatorDouble, server: Server
) -> None:
    theirs = store_at(server, server.address("other-job"))
    saved = tmp_path / "attempt-0" / "checkpoint-epoch-7"
    saved.mkdir(parents=True)
    (saved / "model.bin").write_text("weights")
    theirs.put(checkpoint_name(7, 0), saved, SaveInfo("other", "2026-01-01T00:00:00Z"))
    first = server.address("other-job/attempt-0/checkpoint-epoch-7")
    async with pod_with(server, server.address("mine"), tmp_path / "pod", operator, HOLDFAST_RESUME_FROM=first) as pod:
        await pod.sidecar()
        await pod.answers("/started", 200)
        assert (pod.resume_from / "model.bin").read_text() == "weights"
        await until(lambda: any(batch.resumed for batch in operator.batches))
    resumed = next(batch.resumed for batch in operator.batches if batch.resumed)
    assert (resumed.path, resumed.epoch) == (first, 7)


async def test_an_upload_needs_little_memory(tmp_path: Path, operator: OperatorDouble, server: Server) -> None:
    async with pod_with(server, server.address("large"), tmp_path / "pod", operator) as pod:
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        partial = pod.checkpoint_dir / ".saving"
        partial.mkdir()
        for number in range(4):
            with (partial / f"shard-{number}").open("wb") as file:
                file.truncate(24 << 20)
        (partial / ".holdfast-complete").write_text('{"shards": 1, "ranks": [0]}')
        partial.rename(pod.checkpoint_dir / "checkpoint-epoch-1")
        await until(lambda: operator.outcomes("uploaded") == [1])
        assert peak_mib(sidecar.pid) <= 80


async def test_a_missing_bucket_ends_the_sidecar_with_what_to_do(
    tmp_path: Path, operator: OperatorDouble, server: Server
) -> None:
    address = server.address("x", bucket="no-such-bucket")
    async with pod_with(server, address, tmp_path / "pod", operator) as pod:
        assert await done(await pod.sidecar()) == 1
        assert "there is no such bucket" in pod.log("sidecar").splitlines()[-1]
        assert server.environ["AWS_SECRET_ACCESS_KEY"] not in pod.log("sidecar")


async def test_a_store_that_does_not_answer_is_tried_again_and_told_of(
    tmp_path: Path, operator: OperatorDouble, server: Server
) -> None:
    away = server._replace(environ={**server.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    async with pod_with(away, server.address("away"), tmp_path / "pod", operator) as pod:
        await pod.sidecar()
        await until(lambda: bool(operator.outcomes("unrestored")))
        assert (await pod.ask("/started"))[0] == 503
    reason = next(entry.reason for entry in operator.checkpoints if entry.outcome == "unrestored")
    assert "no answer; check the endpoint" in reason


async def test_an_attempt_that_is_over_finishes_the_upload_under_way_and_begins_no_other(
    tmp_path: Path, operator: OperatorDouble, server: Server
) -> None:
    address = server.address("over")
    store = store_at(server, address)
    async with pod_with(server, address, tmp_path / "pod", operator) as pod:
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        save(pod.checkpoint_dir, 1, MANY)
        await until(lambda: bool(store.names(0)))
        operator.over = True
        await pod.answers("/live", 500)
        save(pod.checkpoint_dir, 2, {"model.bin": b"weights"})
        assert await ended(sidecar) == 0, pod.log("sidecar")
    assert len(store.verify(checkpoint_name(1, 0)).files) == 200
    assert store.names(0) == [checkpoint_name(1, 0)]


async def test_a_worker_that_saves_nothing_itself_waits_until_worker_0_has(
    tmp_path: Path, operator: OperatorDouble, server: Server
) -> None:
    address = server.address("waits")
    store = store_at(server, address)
    write_decision(store, 0, None, "uid-1")
    async with pod_with(
        server,
        address,
        tmp_path / "pod",
        operator,
        HOLDFAST_INDEX="1",
        HOLDFAST_WORKERS="2",
        HOLDFAST_GRACE_SECONDS="90",
    ) as pod:
        await pod.sidecar()
        await pod.answers("/started", 200)
        pod.heeded.touch()
        folder = save(tmp_path / "worker-0", 7, {"model.bin": b"weights"})
        waiting = asyncio.create_task(pod.ask("/prestop"))
        await until(pod.notice_file.exists)
        await asyncio.to_thread(store.put, checkpoint_name(7, 0), folder, SaveInfo("uid-1", "2026-01-01T00:00:00Z"))
        assert await waiting == (200, "saved checkpoint-epoch-7 of attempt 0\n")


def save(folder: Path, epoch: int, files: Mapping[str, bytes]) -> Path:
    """A whole checkpoint, as the SDK leaves it."""
    partial = folder / ".saving"
    partial.mkdir(parents=True)
    for name, content in files.items():
        (partial / name).write_bytes(content)
    (partial / ".holdfast-complete").write_text('{"shards": 1, "ranks": [0]}')
    return partial.rename(folder / f"checkpoint-epoch-{epoch}")


PLAIN = """
import os
folder = os.path.join(os.environ["CHECKPOINT_DIR"], "checkpoint-epoch-9")
os.mkdir(folder)
open(os.path.join(folder, "model.bin"), "wb").write(b"final weights")
"""


@pytest.mark.parametrize("ended_well", [True, False])
async def test_the_last_save_of_a_plain_script_is_kept_when_the_script_ended_well(
    tmp_path: Path, operator: OperatorDouble, server: Server, ended_well: bool
) -> None:
    """Written in place, without a marker, and over at once: only how it ended tells it from half a save."""
    address = server.address(f"ended-{ended_well}")
    operator.ended_well = ended_well
    async with pod_with(server, address, tmp_path / "pod", operator) as pod:
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        assert await done(await pod.script(PLAIN)) == 0, pod.log("script")
        assert await ended(sidecar) == 0, pod.log("sidecar")
    assert [name.epoch for name in store_at(server, address).names(0)] == ([9] if ended_well else [])
