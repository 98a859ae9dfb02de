"""Real workers that are asked to save: they do so at once, go on, and lose no bit by it."""

import json
import signal
import time
from pathlib import Path

import pytest

from holdfast.checkpoints.completeness import read_markers
from holdfast.sidecar.persister import trainer_saves_on_notice, write_notice
from tests.trainer.test_one_worker import files
from tests.trainer.workers import PORT, WAIT_S, Processes, end, loopback

TRAINING: dict[str, object] = {"DATASET": "synthetic", "PARAM_SAMPLES": 4_000, "CHECKPOINT_FREQUENCY": 1_000_000}


def eventually(path: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.01)


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-epoch-*"), key=lambda path: int(path.name.rpartition("-")[2]))


def first_of(folder: Path) -> Path:
    deadline = time.monotonic() + WAIT_S
    while not checkpoints(folder):
        assert time.monotonic() < deadline, f"nothing is saved in {folder}"
        time.sleep(0.01)
    return checkpoints(folder)[0]


@pytest.mark.parametrize(("size", "noticed"), [(1, 0), (3, 2)])
def test_a_notice_to_any_worker_saves_at_once_and_the_training_goes_on_from_it_to_the_last_bit(
    processes: Processes, tmp_path: Path, size: int, noticed: int
) -> None:
    group = {"MASTER_ADDR": loopback(), "MASTER_PORT": PORT, "WORLD_SIZE": size, "PARAM_JOIN_TIMEOUT": WAIT_S}
    saved, notices = tmp_path / "saved", [tmp_path / f"notice-{rank}" for rank in range(size)]
    workers = [
        processes.start(
            RANK=rank, HOLDFAST_NOTICE_FILE=notices[rank], CHECKPOINT_DIR=saved, EPOCHS=1_000_000, **group, **TRAINING
        )
        for rank in range(size)
    ]
    for notice in notices:
        eventually(notice.with_name(f"{notice.name}.heeded"))
    write_notice(notices[noticed], "the pod is about to end")
    answer = first_of(saved)
    assert [worker.poll() for worker in workers] == [None] * size, "they go on until they are signalled"
    for worker in workers:
        worker.kill()
        end(worker)
    assert read_markers(answer) is not None
    epochs = json.loads((answer / "state.json").read_text())["position"]["epoch"] + 2
    same = {**TRAINING, "EPOCHS": epochs}
    resumed = processes.run_group(size, RESUME_FROM=answer, CHECKPOINT_DIR=tmp_path / "resumed", **same)
    straight = processes.run_group(size, CHECKPOINT_DIR=tmp_path / "straight", **same)
    assert resumed[0].summary == straight[0].summary
    last = f"checkpoint-epoch-{epochs}"
    assert files(tmp_path / "resumed" / last) == files(tmp_path / "straight" / last)


def test_the_answer_to_a_notice_is_replaced_by_the_checkpoint_of_the_whole_epoch(
    processes: Processes, tmp_path: Path
) -> None:
    saved, notice = tmp_path / "saved", tmp_path / "notice"
    write_notice(notice, "it was there before the training")
    ended = processes.run(EPOCHS=2, CHECKPOINT_DIR=saved, HOLDFAST_NOTICE_FILE=notice, DATASET="synthetic")
    assert ended.code == 0
    assert ended.out.count(f"saved {saved}/checkpoint-epoch-1\n") == 2, "once for the notice, after its first step"
    assert [path.name for path in checkpoints(saved)] == ["checkpoint-epoch-1", "checkpoint-epoch-2"]
    assert json.loads((saved / "checkpoint-epoch-1" / "state.json").read_text())["position"]["samples"] == 0
    assert sorted(path.name for path in saved.iterdir()) == ["checkpoint-epoch-1", "checkpoint-epoch-2"]


def test_a_notice_in_the_last_step_of_an_epoch_is_answered_by_the_whole_epoch(
    processes: Processes, tmp_path: Path
) -> None:
    saved, notice = tmp_path / "saved", tmp_path / "notice"
    write_notice(notice, "save")
    one_step = {**TRAINING, "BATCH_SIZE": 1_000_000}
    ended = processes.run(EPOCHS=3, CHECKPOINT_DIR=saved, HOLDFAST_NOTICE_FILE=notice, **one_step)
    assert ended.code == 0
    assert [path.name for path in checkpoints(saved)] == ["checkpoint-epoch-1", "checkpoint-epoch-3"]
    assert json.loads((saved / "checkpoint-epoch-1" / "state.json").read_text())["position"]["epoch"] == 1


def test_sigterm_in_the_last_step_of_an_epoch_leaves_a_checkpoint_that_can_be_resumed_from(
    processes: Processes, tmp_path: Path
) -> None:
    one_step = {**TRAINING, "BATCH_SIZE": 1_000_000, "PARAM_SAMPLES": 500}
    worker = processes.start(
        EPOCHS=1_000_000,
        CHECKPOINT_DIR=tmp_path / "saved",
        HOLDFAST_NOTICE_FILE=tmp_path / "notice",
        **one_step,
    )
    eventually(tmp_path / "notice.heeded")
    worker.send_signal(signal.SIGTERM)
    assert end(worker).code == 143
    (saved,) = checkpoints(tmp_path / "saved")
    epoch = json.loads((saved / "state.json").read_text())["position"]["epoch"]
    assert saved.name == f"checkpoint-epoch-{epoch}"
    resumed = processes.run(EPOCHS=epoch + 1, RESUME_FROM=saved, **one_step)
    assert (resumed.code, resumed.err) == (0, "")


def test_a_training_without_checkpoints_does_not_say_that_it_saves_on_notice(
    processes: Processes, tmp_path: Path
) -> None:
    assert processes.run(EPOCHS=1, HOLDFAST_NOTICE_FILE=tmp_path / "notice").code == 0
    assert not trainer_saves_on_notice(tmp_path / "notice")
