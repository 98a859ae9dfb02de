"""What a worker was asked to do, and for how long that counts."""

from pathlib import Path

import pytest

from holdfast.sidecar.persister import trainer_saves_on_notice, write_notice
from holdfast.trainer.interrupt import Interrupt
from holdfast.trainer.run import Interruptions
from holdfast.trainer.settings import settings
from holdfast.trainer.training import StopOrSave
from tests.train.runs import Clock


def asked(
    folder: Path, *, rank: int = 0, clock: Clock | None = None, **environ: str
) -> tuple[Interruptions, Interrupt]:
    interrupt = Interrupt()
    told = {"CHECKPOINT_DIR": str(folder / "saved"), "HOLDFAST_NOTICE_FILE": str(folder / "notice"), **environ}
    return Interruptions(settings(told), interrupt, rank=rank, clock=clock or Clock()), interrupt


def test_a_training_without_a_request_has_no_reason_to_stop(tmp_path: Path) -> None:
    assert asked(tmp_path)[0].poll() == StopOrSave()


def test_a_notice_is_a_request_to_save_until_it_is_answered(tmp_path: Path) -> None:
    worker, _ = asked(tmp_path)
    write_notice(tmp_path / "notice", "the pod is about to end")
    assert worker.poll() == worker.poll() == StopOrSave(save=True)
    worker.note_saved()
    assert worker.poll() == StopOrSave()
    write_notice(tmp_path / "notice", "once more")
    assert worker.poll() == StopOrSave(save=True)


def test_a_notice_that_comes_during_a_save_is_not_answered_by_it(tmp_path: Path) -> None:
    worker, _ = asked(tmp_path)
    write_notice(tmp_path / "notice", "one")
    worker.poll()
    write_notice(tmp_path / "notice", "two")
    worker.note_saved()
    assert worker.poll() == StopOrSave(save=True)


def test_a_signal_is_a_request_to_stop(tmp_path: Path) -> None:
    worker, interrupt = asked(tmp_path)
    interrupt.number = 15
    assert worker.poll() == StopOrSave(stop=True)


def test_notices_are_heeded_by_every_worker_of_a_training_that_saves(tmp_path: Path) -> None:
    asked(tmp_path, CHECKPOINT_DIR="")
    assert not trainer_saves_on_notice(tmp_path / "notice")
    asked(tmp_path, rank=3)
    assert trainer_saves_on_notice(tmp_path / "notice")


def test_without_a_folder_for_checkpoints_nothing_is_a_request_to_save(tmp_path: Path) -> None:
    worker, _ = asked(tmp_path, CHECKPOINT_DIR="", CHECKPOINT_INTERVAL_SECONDS="0.5")
    write_notice(tmp_path / "notice", "one")
    assert worker.poll() == StopOrSave()


@pytest.mark.parametrize(("rank", "wish"), [(0, StopOrSave(save=True)), (1, StopOrSave())])
def test_worker_0_saves_when_so_much_time_has_passed_since_the_last_checkpoint(
    tmp_path: Path, rank: int, wish: StopOrSave
) -> None:
    clock = Clock()
    worker, _ = asked(tmp_path, rank=rank, clock=clock, CHECKPOINT_INTERVAL_SECONDS="1.5")
    clock.now_s += 1.4
    assert worker.poll() == StopOrSave()
    clock.now_s += 0.1
    assert worker.poll() == wish
    worker.note_saved()
    assert worker.poll() == StopOrSave()
