"""What a training writes for TensorBoard is found in the object store, and beside TensorBoard."""

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from signal import SIGKILL

import pytest

from holdfast.checkpoints.object_store import Bucket
from holdfast.checkpoints.settings import open_bucket
from holdfast.checkpoints.store import StoreInUse
from holdfast.sidecar.background import Events, TensorboardSync
from tests.checkpoints.servers.server import Server, s3
from tests.sidecar.operators import OperatorDouble, until
from tests.sidecar.pods import Pod, done, ended


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3(tmp_path_factory.mktemp("s3")) as running:
        yield running


def bucket_of(server: Server, prefix: str) -> Bucket:
    return open_bucket(server.address(prefix), server.environ)


def write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def test_files_are_brought_and_those_that_grow_are_brought_again(tmp_path: Path, server: Server) -> None:
    bucket, folder = bucket_of(server, "grow"), tmp_path / "tensorboard"
    mirroring = TensorboardSync(folder, bucket)
    mirroring.upload_new()  # nothing is written yet
    write(folder / "run-1" / "events.out.tfevents.1", b"first")
    mirroring.upload_new()
    assert bucket.read("tensorboard/run-1/events.out.tfevents.1", 100) == b"first"
    write(folder / "run-1" / "events.out.tfevents.1", b"first, second")
    mirroring.upload_new()
    assert bucket.read("tensorboard/run-1/events.out.tfevents.1", 100) == b"first, second"


def test_what_is_in_the_store_is_downloaded_and_a_file_that_grows_stays_the_same_file(
    tmp_path: Path, server: Server
) -> None:
    bucket = bucket_of(server, "down")
    events, file = Events(tmp_path, bucket), tmp_path / "run-1" / "events"
    assert not events.download()
    bucket.put("tensorboard/run-1/events", b"first")
    assert events.download()
    with file.open("rb") as opened:  # as TensorBoard reads it
        assert opened.read() == b"first"
        bucket.put("tensorboard/run-1/events", b"first, second")
        assert events.download()
        assert opened.read() == b", second"
    assert not events.download()
    bucket.put("tensorboard/run-1/events", b"new")
    assert events.download()
    assert file.read_bytes() == b"new"


def test_a_name_that_leads_elsewhere_is_not_downloaded_and_the_others_are(tmp_path: Path, server: Server) -> None:
    bucket = bucket_of(server, "names")
    bucket.put("tensorboard/a\\b", b"bad")
    bucket.put("tensorboard/events", b"good")
    assert Events(tmp_path / "own", bucket).download()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["events"]


def test_what_has_not_changed_is_not_sent_again(tmp_path: Path, server: Server) -> None:
    bucket, folder = bucket_of(server, "once"), tmp_path / "tensorboard"
    mirroring = TensorboardSync(folder, bucket)
    write(folder / "events", b"first")
    mirroring.upload_new()
    bucket.delete(["tensorboard/events"])
    mirroring.upload_new()
    assert bucket.objects("tensorboard") == []


def test_a_link_that_leads_elsewhere_is_not_followed_and_nothing_fails(tmp_path: Path, server: Server) -> None:
    bucket, folder = bucket_of(server, "link"), tmp_path / "tensorboard"
    write(tmp_path / "secret", b"not for the store")
    folder.mkdir()
    (folder / "events").symlink_to(tmp_path / "secret")
    TensorboardSync(folder, bucket).upload_new()
    assert bucket.objects("") == []


async def test_a_sidecar_brings_the_last_of_it_when_the_training_has_ended(tmp_path: Path, server: Server) -> None:
    folder, address = tmp_path / "operator", server.address("sidecar")
    folder.mkdir()
    written = tmp_path / "pod" / "checkpoints" / "tensorboard"
    environ = {**server.environ, "HOLDFAST_STORE": address, "TENSORBOARD_DIR": str(written)}
    async with (
        OperatorDouble(folder).serving() as operator,
        Pod(tmp_path / "pod" / "checkpoints", tmp_path / "pod", operator, environ=environ) as pod,
    ):
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        assert await done(await pod.trainer(EPOCHS="1")) == 0, pod.log("trainer")
        write(written / "events", b"the loss of every step")
        assert await ended(sidecar) == 0, pod.log("sidecar")
    assert bucket_of(server, "sidecar").read("tensorboard/events", 100) == b"the loss of every step"


def test_nothing_is_brought_while_another_job_has_the_place(tmp_path: Path, server: Server) -> None:
    bucket, folder, held = bucket_of(server, "lost"), tmp_path / "tensorboard", [False]

    def must_hold() -> None:
        if not held[0]:
            raise StoreInUse("ml/other has it")

    mirroring = TensorboardSync(folder, bucket, must_hold)
    write(folder / "events", b"first")
    mirroring.upload_new()
    assert bucket.objects("") == []
    held[0] = True
    mirroring.upload_new()
    assert bucket.read("tensorboard/events", 100) == b"first"


@pytest.mark.parametrize("index", [0, 1])
async def test_a_worker_whose_place_another_job_has_taken_uploads_nothing(
    tmp_path: Path, server: Server, index: int
) -> None:
    bucket, lease = bucket_of(server, f"taken-{index}"), ".holdfast-lease.json"
    environ = {**server.environ, "HOLDFAST_STORE": server.address(f"taken-{index}"), "HOLDFAST_WORKERS": "2"}
    async with AsyncExitStack() as stack:
        operator = await stack.enter_async_context(OperatorDouble(tmp_path).serving())
        pods = []
        for each in range(index + 1):  # worker 0 decides what the others begin with
            own = tmp_path / f"pod-{each}"
            events = {"TENSORBOARD_DIR": str(own / "checkpoints" / "tensorboard")}
            pod = Pod(own / "checkpoints", own, operator, index=each, environ={**environ, **events})
            pods.append(await stack.enter_async_context(pod))
            await pod.sidecar()
            await pod.answers("/started", 200)
        await ended(pod.running[0], SIGKILL)
        other = {"uid": "uid-9", "name": "ml/other", "attempt": 0, "renewals": 1, "released": False}
        bucket.put(lease, json.dumps(other).encode())
        sidecar = await pod.sidecar()
        await until(lambda: "is in use by TrainingJob ml/other" in pod.log("sidecar"))
        write(pod.root / "tensorboard" / "events", b"of a job that has lost its place")
        saved = pod.checkpoint_dir / "checkpoint-epoch-1"
        write(saved / f"shard-{index}", b"weights")
        write(saved / f".holdfast-complete-{index}", json.dumps({"shards": 2, "ranks": [index]}).encode())
        assert await ended(sidecar) == 0, pod.log("sidecar")
        assert "TensorBoard's files are not brought to the store" in pod.log("sidecar")
        content = bucket.read(lease, 1000)
    assert content is not None
    assert json.loads(content)["uid"] == "uid-9"
    assert [name for name, *_ in bucket.objects("") if "tensorboard" in name or "checkpoint-epoch" in name] == []
