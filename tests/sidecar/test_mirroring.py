"""What a training writes for TensorBoard is found in the object store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpoints.bucket import Bucket
from holdfast.checkpoints.settings import open_bucket
from holdfast.sidecar.mirroring import Mirroring
from tests.checkpoints.servers.server import Server, s3
from tests.sidecar.operators import OperatorDouble
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
    mirroring = Mirroring(folder, bucket)
    mirroring.bring()  # nothing is written yet
    write(folder / "run-1" / "events.out.tfevents.1", b"first")
    mirroring.bring()
    assert bucket.read("tensorboard/run-1/events.out.tfevents.1", 100) == b"first"
    write(folder / "run-1" / "events.out.tfevents.1", b"first, second")
    mirroring.bring()
    assert bucket.read("tensorboard/run-1/events.out.tfevents.1", 100) == b"first, second"


def test_what_has_not_changed_is_not_sent_again(tmp_path: Path, server: Server) -> None:
    bucket, folder = bucket_of(server, "once"), tmp_path / "tensorboard"
    mirroring = Mirroring(folder, bucket)
    write(folder / "events", b"first")
    mirroring.bring()
    bucket.delete(["tensorboard/events"])
    mirroring.bring()
    assert bucket.objects("tensorboard") == []


def test_a_link_that_leads_elsewhere_is_not_followed_and_nothing_fails(tmp_path: Path, server: Server) -> None:
    bucket, folder = bucket_of(server, "link"), tmp_path / "tensorboard"
    write(tmp_path / "secret", b"not for the store")
    folder.mkdir()
    (folder / "events").symlink_to(tmp_path / "secret")
    Mirroring(folder, bucket).bring()
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
