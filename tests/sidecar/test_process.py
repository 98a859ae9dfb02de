"""`holdfast sidecar` beside a real training, as the kubelet runs the two."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.checkpoints.manifest import checkpoint_name
from holdfast.checkpoints.volume_store import VolumeStore
from tests.sidecar.operators import TOKEN, OperatorDouble, until
from tests.sidecar.pods import Pod, done, ended, peak_mib


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[OperatorDouble]:
    folder = tmp_path / "operator"
    folder.mkdir()
    async with OperatorDouble(folder).serving() as double:
        yield double


# What a sidecar without an object store has no use for, and every pod of a cluster would carry.
HEAVY = {"obstore", "typer", "click", "rich.console", "pygments", "uvloop", "numpy", "yaml", "jsonschema", "cel"}
HEAVY |= {"prometheus_client", "cryptography", "sqlite3", "holdfast.api.meta", "holdfast.cluster"}


async def test_a_sidecar_imports_only_what_its_pod_needs(tmp_path: Path, operator: OperatorDouble) -> None:
    async with Pod(tmp_path / "volume", tmp_path / "pod", operator) as pod:
        sidecar = await pod.sidecar("-X", "importtime")
        await pod.answers("/started", 200)
        pod.progress_file.write_text('{"epoch": 1}\n')
        await until(lambda: 1 in operator.epochs)
        assert await ended(sidecar) == 0, pod.log("sidecar")
    imported = {line.rpartition("|")[2].strip() for line in pod.log("sidecar").splitlines() if "import time:" in line}
    assert {"aiohttp", "holdfast.sidecar.sidecar"} <= imported
    assert imported & HEAVY == set()


async def test_a_training_is_told_of_and_kept_from_its_first_epoch_to_its_last(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    store = VolumeStore(tmp_path / "volume")
    async with Pod(tmp_path / "volume", tmp_path / "pod", operator) as pod:
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        assert not pod.resume_from.exists()
        assert await done(await pod.trainer()) == 0, pod.log("trainer")
        await until(lambda: {6} <= set(operator.epochs) and {name.epoch for name in store.names(0)} == {4, 5, 6})
        await until(lambda: {4, 5, 6} <= set(operator.outcomes("completed")))
        assert await ended(sidecar) == 0, pod.log("sidecar")
    assert sorted(operator.epochs) == [0, 1, 2, 3, 4, 5, 6]
    assert operator.epochs[6].total_epochs == 6
    assert {"loss", "accuracy", "trainLoss"} <= operator.epochs[6].metrics.keys()
    assert operator.tokens == {f"Bearer {TOKEN}"}
    assert [store.verify(checkpoint_name(epoch, 0)).about.job for epoch in (4, 5, 6)] == ["uid-1"] * 3
    last_word = json.loads(pod.message.read_text())
    assert last_word["checkpoint"].endswith("/attempt-0/checkpoint-epoch-6")
    assert last_word["progress"]["epoch"] == 6
    assert TOKEN not in pod.log("sidecar")


async def test_the_next_attempt_goes_on_from_the_newest_valid_checkpoint(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    volume = tmp_path / "volume"
    async with Pod(volume, tmp_path / "pod-0", operator) as pod:
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        assert await done(await pod.trainer(EPOCHS="3")) == 0, pod.log("trainer")
        await until(lambda: {2, 3} <= set(operator.outcomes("completed")))
        assert await ended(sidecar) == 0, pod.log("sidecar")
    (volume / "attempt-0" / "checkpoint-epoch-3" / "model.npz").write_bytes(b"a flipped bit")
    async with Pod(volume, tmp_path / "pod-1", operator, attempt=1) as pod:
        await pod.sidecar()
        await pod.answers("/started", 200)
        assert pod.resume_from.resolve().name == "checkpoint-epoch-2"
        assert await done(await pod.trainer(EPOCHS="4")) == 0, pod.log("trainer")
        await until(lambda: 4 in operator.outcomes("completed"))
        await until(lambda: operator.batches[-1].attempt == 1)
    resumed = [batch.resumed for batch in operator.batches if batch.resumed is not None]
    assert [(found.path, found.epoch) for found in resumed] == [(f"{volume}/attempt-0/checkpoint-epoch-2", 2)]
    quarantined = [entry for entry in operator.checkpoints if entry.outcome == "quarantined"]
    assert [(entry.path, entry.epoch) for entry in quarantined] == [(f"{volume}/attempt-0/checkpoint-epoch-3", 3)]
    assert (volume / "quarantine" / "attempt-0-checkpoint-epoch-3").is_dir()


SAVES_ON_NOTICE = """
import os, pathlib, time
folder, notice = pathlib.Path(os.environ["CHECKPOINT_DIR"]), pathlib.Path(os.environ["HOLDFAST_NOTICE_FILE"])
pathlib.Path(f"{notice}.heeded").touch()
while not notice.exists():
    time.sleep(0.01)
partial = folder / ".saving"
partial.mkdir()
(partial / "model.bin").write_text(notice.read_text())
(partial / ".holdfast-complete").write_text('{"shards": 1, "ranks": [0]}')
partial.rename(folder / "checkpoint-epoch-9")
time.sleep(3600)
"""


async def test_before_a_pod_ends_its_training_is_asked_to_save_and_waited_for(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    async with Pod(tmp_path / "volume", tmp_path / "pod", operator) as pod:
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        script = await pod.script(SAVES_ON_NOTICE)
        await until(pod.heeded.exists)
        assert await pod.ask("/prestop") == (200, "saved checkpoint-epoch-9 of attempt 0\n")
        await ended(script)
        assert await ended(sidecar) == 0, pod.log("sidecar")
    store = VolumeStore(tmp_path / "volume")
    assert store.verify(checkpoint_name(9, 0))
    assert (tmp_path / "volume/attempt-0/checkpoint-epoch-9/model.bin").read_text() == "the pod is about to end\n"
    assert operator.outcomes("completed") == [9]
    assert json.loads(pod.message.read_text())["checkpoint"].endswith("checkpoint-epoch-9")


async def test_the_reference_trainer_saves_when_its_pod_is_about_to_end(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    async with Pod(tmp_path / "volume", tmp_path / "pod", operator) as pod:
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        trainer = await pod.trainer(EPOCHS="1000000", PARAM_SAMPLES="4000", CHECKPOINT_FREQUENCY="1000000")
        await until(pod.heeded.exists)
        status, said = await pod.ask("/prestop")
        assert (status, said[:22]) == (200, "saved checkpoint-epoch")
        assert trainer.returncode is None, "it goes on until it is signalled"
        assert await ended(trainer) == 143, pod.log("trainer")
        assert await ended(sidecar) == 0, pod.log("sidecar")
    store = VolumeStore(tmp_path / "volume")
    assert [store.verify(name).epoch for name in store.names(0)] == [name.epoch for name in store.names(0)] != []


async def test_a_training_that_does_not_save_is_waited_for_during_a_part_of_the_grace_period(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    async with Pod(tmp_path / "v", tmp_path / "pod", operator, environ={"HOLDFAST_GRACE_SECONDS": "3"}) as pod:
        await pod.sidecar()
        await pod.answers("/started", 200)
        assert await pod.ask("/prestop") == (200, "the training does not heed notices\n")
        pod.heeded.touch()
        assert await pod.ask("/prestop") == (200, "no checkpoint came\n")
        assert pod.notice_file.exists()


async def test_on_a_shared_volume_another_worker_tells_of_no_checkpoint_and_waits_for_worker_0_to_save(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    zero = Pod(tmp_path / "volume", tmp_path / "pod-0", operator)
    one = Pod(tmp_path / "volume", tmp_path / "pod-1", operator, index=1)
    async with zero, one:
        for pod in (zero, one):
            await pod.sidecar()
            await pod.answers("/started", 200)
        await zero.script(SAVES_ON_NOTICE)
        await until(zero.heeded.exists)
        one.heeded.touch()
        asked = asyncio.create_task(one.ask("/prestop"))
        await until(one.notice_file.exists)
        assert (await zero.ask("/prestop"))[0] == 200
        assert await asked == (200, "saved checkpoint-epoch-9 of attempt 0\n")
        await until(lambda: operator.outcomes("completed") == [9])
        assert await ended(one.running[0]) == 0
    assert {batch.index for batch in operator.batches if batch.checkpoints} == {0}
    assert {batch.index for batch in operator.batches} == {0, 1}


async def test_an_attempt_that_is_over_fails_the_probe_and_is_not_asked_to_save(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    async with Pod(tmp_path / "volume", tmp_path / "pod", operator) as pod:
        await pod.sidecar()
        await pod.answers("/started", 200)
        assert (await pod.ask("/live"))[0] == 200
        operator.over = True
        await pod.answers("/live", 500)
        assert await pod.ask("/prestop") == (200, "the training need not save\n")
        assert not pod.notice_file.exists()


async def test_a_training_that_is_to_end_saves_before_the_probe_fails(tmp_path: Path, operator: OperatorDouble) -> None:
    async with Pod(tmp_path / "volume", tmp_path / "pod", operator) as pod:
        await pod.sidecar()
        await pod.answers("/started", 200)
        await pod.script(SAVES_ON_NOTICE)
        await until(pod.heeded.exists)
        operator.stop = "TargetReached"
        await pod.answers("/live", 500)
        assert (pod.checkpoint_dir / "checkpoint-epoch-9").is_dir()
        assert pod.notice_file.read_text() == "the training is to end: TargetReached\n"


async def test_a_sidecar_that_was_killed_goes_on_and_nothing_is_lost(tmp_path: Path, operator: OperatorDouble) -> None:
    operator.status = 503  # so that all that is told is still in the memory of the one that is killed
    async with Pod(tmp_path / "volume", tmp_path / "pod", operator) as pod:
        first = await pod.sidecar()
        await pod.answers("/started", 200)
        assert await pod.post('{"epoch": 1, "loss": 0.5}\n{"epoch": 2, "loss": 0.25}\n') == 204
        trainer = await pod.trainer(EPOCHS="5")
        await until(lambda: (pod.checkpoint_dir / "checkpoint-epoch-2").exists())
        first.kill()
        assert await done(trainer) == 0, pod.log("trainer")
        operator.status = 200
        await pod.sidecar()
        await pod.answers("/started", 200)
        await until(lambda: {3, 4, 5} <= set(operator.outcomes("completed")))
        await until(lambda: sorted(operator.epochs) == [0, 1, 2, 3, 4, 5])
    runs = {batch.run for batch in operator.bodies}
    assert len(runs) == 2
    assert not pod.resume_from.exists(), "a training that runs already does not resume"
    assert all(VolumeStore(tmp_path / "volume").verify(checkpoint_name(epoch, 0)) for epoch in (3, 4, 5))


async def test_with_the_operator_away_training_and_checkpoints_go_on_and_it_hears_everything_later(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    address = operator.reports_file.read_text()
    operator.reports_file.unlink()
    store = VolumeStore(tmp_path / "volume")
    async with Pod(tmp_path / "volume", tmp_path / "pod", operator) as pod:
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        assert await done(await pod.trainer(EPOCHS="3")) == 0, pod.log("trainer")
        await until(lambda: all(store.manifest(checkpoint_name(epoch, 0)) for epoch in (1, 2, 3)))
        assert (await pod.ask("/live"))[0] == 200
        operator.reports_file.write_text(address)
        await until(lambda: sorted(operator.epochs) == [0, 1, 2, 3])
        await until(lambda: set(operator.outcomes("completed")) == {1, 2, 3})
        assert await ended(sidecar) == 0, pod.log("sidecar")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"HOLDFAST_JOB": ""}, "HOLDFAST_JOB is not set: the operator runs this command"),
        ({"HOLDFAST_INDEX": "one"}, "HOLDFAST_INDEX is 'one'"),
        ({"CHECKPOINT_DIR": "/checkpoints"}, "CHECKPOINT_DIR is '/checkpoints'"),
        ({"HOLDFAST_STORE": "ftp://somewhere/x"}, "'ftp://somewhere/x' is no place for checkpoints"),
        ({"HOLDFAST_RESUME_FROM": "/nowhere/checkpoint-epoch-3"}, "there is no folder /nowhere/checkpoint-epoch-3"),
        ({"HOLDFAST_POD_IP": "192.0.2.1"}, "can't listen on port"),
    ],
)
async def test_what_no_retry_mends_is_one_sentence_and_exit_code_1(
    tmp_path: Path, operator: OperatorDouble, changed: dict[str, str], said: str
) -> None:
    async with Pod(tmp_path / "volume", tmp_path / "pod", operator, environ=changed) as pod:
        assert await done(await pod.sidecar()) == 1
        assert pod.log("sidecar").splitlines()[-1].startswith(f"holdfast: {said}")
        assert "Traceback" not in pod.log("sidecar")
        assert pod.message.read_text().startswith(said), "the operator shows it as what the job waits for"


async def test_it_needs_little_memory(tmp_path: Path, operator: OperatorDouble) -> None:
    async with Pod(tmp_path / "volume", tmp_path / "pod", operator) as pod:
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        folder = pod.checkpoint_dir / "checkpoint-epoch-1"
        (pod.checkpoint_dir / ".saving").mkdir()
        with (pod.checkpoint_dir / ".saving" / "model.bin").open("wb") as file:
            file.truncate(256 << 20)
        (pod.checkpoint_dir / ".saving" / ".holdfast-complete").write_text('{"shards": 1, "ranks": [0]}')
        (pod.checkpoint_dir / ".saving").rename(folder)
        await until(lambda: operator.outcomes("completed") == [1])
        assert peak_mib(sidecar.pid) <= 80


async def test_a_sidecar_whose_place_another_job_uses_waits_and_touches_nothing(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    volume, lease = tmp_path / "volume", tmp_path / "volume" / ".holdfast-lease.json"
    other = {"HOLDFAST_JOB_UID": "uid-9", "HOLDFAST_JOB": "other"}
    async with (
        Pod(volume, tmp_path / "pod-9", operator, environ=other) as holder,
        Pod(volume, tmp_path / "pod-1", operator) as pod,
    ):
        holding = await holder.sidecar()
        await until(lambda: (volume / "attempt-0.decision").exists())
        decision = (volume / "attempt-0.decision").read_bytes()
        await pod.sidecar()
        await until(lambda: any(entry.outcome == "unrestored" for entry in operator.checkpoints))
        assert "is in use by TrainingJob ml/other (uid uid-9)" in operator.checkpoints[-1].reason
        assert (volume / "attempt-0.decision").read_bytes() == decision
        assert (await pod.ask("/started"))[0] != 200
        assert json.loads(lease.read_bytes())["uid"] == "uid-9"
        assert await ended(holding) == 0, holder.log("sidecar")
        await pod.answers("/started", 200)
        assert json.loads(lease.read_bytes())["uid"] == "uid-1"
