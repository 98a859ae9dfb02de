"""Whatever becomes of a sidecar, the training beside it goes on."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.checkpoints.manifest import checkpoint_name
from holdfast.checkpoints.volume_store import VolumeStore
from tests.sidecar.operators import OperatorDouble, until
from tests.sidecar.pods import Pod, done, ended
from tests.trainer.workers import loopback


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[OperatorDouble]:
    folder = tmp_path / "operator"
    folder.mkdir()
    async with OperatorDouble(folder).serving() as double:
        yield double


async def test_a_sidecar_that_dies_again_and_again_loses_nothing(tmp_path: Path, operator: OperatorDouble) -> None:
    store = VolumeStore(tmp_path / "volume")
    async with Pod(tmp_path / "volume", tmp_path / "pod", operator, environ={"HOLDFAST_RETENTION": "99"}) as pod:
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        trainer = await pod.trainer(EPOCHS="12")
        for _ in range(6):
            sidecar.kill()
            await sidecar.wait()
            sidecar = await pod.sidecar()
            await pod.answers("/started", 200)
        assert await done(trainer) == 0, pod.log("trainer")
        await until(lambda: all(store.manifest(checkpoint_name(epoch, 0)) for epoch in range(1, 13)))
        await until(lambda: sorted(operator.epochs) == list(range(13)))
        assert await ended(sidecar) == 0, pod.log("sidecar")


async def test_a_folder_for_its_state_that_can_t_be_written_costs_nothing(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    (tmp_path / "file").write_text("")
    environ = {"HOLDFAST_STATE_DIR": str(tmp_path / "file" / "state")}
    async with Pod(tmp_path / "volume", tmp_path / "pod", operator, environ=environ) as pod:
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        assert await pod.post('{"epoch": 1, "loss": 0.5}') == 204
        await until(lambda: 1 in operator.epochs)
        assert await done(await pod.trainer(EPOCHS="2")) == 0, pod.log("trainer")
        await until(lambda: set(operator.outcomes("completed")) == {1, 2})
        assert await ended(sidecar) == 0, pod.log("sidecar")


@pytest.mark.parametrize(
    "text", ["", "{", '{"url": "http://127.0.0.1:1", "authority": ""}', '{"url": 7}', "\x00" * 9999]
)
async def test_an_address_of_the_operator_that_makes_no_sense_is_read_again_later(
    tmp_path: Path, operator: OperatorDouble, text: str
) -> None:
    right = operator.reports_file.read_text()
    operator.reports_file.write_text(text)
    async with Pod(tmp_path / "volume", tmp_path / "pod", operator) as pod:
        await pod.sidecar()
        await pod.answers("/started", 200)
        assert await pod.post('{"epoch": 1}') == 204
        assert (await pod.ask("/live"))[0] == 200
        operator.reports_file.write_text(right)
        await until(lambda: 1 in operator.epochs)


async def test_a_sidecar_that_starts_anew_and_can_t_keep_any_more_stays_and_says_so(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    async with Pod(tmp_path / "volume", tmp_path / "pod", operator) as pod:
        first = await pod.sidecar()
        await pod.answers("/started", 200)
        first.kill()
        await first.wait()
        pod.environ["HOLDFAST_STORE"] = "ftp://somewhere"
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        await until(lambda: operator.outcomes("failed") == [0])
        assert (await pod.ask("/live"))[0] == 200, "a probe that fails would stop the training"
        assert "is no place for checkpoints" in operator.checkpoints[-1].reason
        assert await ended(sidecar) == 0, pod.log("sidecar")


async def test_pods_on_one_machine_have_the_same_ports_and_hear_their_own_trainings(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    ports = Pod(tmp_path / "x", tmp_path / "x", operator)
    same = {
        "HOLDFAST_SIDECAR_PORT": str(ports.port),
        "HOLDFAST_PROGRESS_PORT": str(ports.progress_port),
    }
    environs = [{**same, "HOLDFAST_POD_IP": loopback(), "HOLDFAST_JOB": f"job-{number}"} for number in range(2)]
    pods = [
        Pod(tmp_path / f"volume-{number}", tmp_path / f"pod-{number}", operator, environ=environ)
        for number, environ in enumerate(environs)
    ]
    async with pods[0], pods[1]:
        for number, pod in enumerate(pods):
            pod.port = ports.port
            await pod.sidecar()
            await pod.answers("/started", 200)
            assert await pod.post(f'{{"epoch": 1, "loss": {number}}}') == 204
        await until(lambda: len([batch for batch in operator.batches if batch.progress]) >= 2)
    heard = {batch.job: entry.metrics["loss"] for batch in operator.batches for entry in batch.progress}
    assert heard == {"job-0": 0.0, "job-1": 1.0}
