"""Where a training begins."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast.trainer import checkpoint
from holdfast.trainer.checkpoint import begin
from holdfast.trainer.report import Report
from holdfast.trainer.settings import InvalidTrainerSetting
from holdfast.trainer.training import Task, evaluate, fresh
from tests.trainer.tasks import same, task, trained
from tests.trainer.workers import epochs


def report(training: Task, folder: Path) -> Report:
    return Report(replace(training.settings, progress_file=folder / "progress"), quiet=False)


def saved(training: Task, folder: Path, epochs: int) -> Path:
    state = trained(training, fresh(training), epochs)
    return checkpoint.save(folder, training.network, state, training.settings.shape)


def test_a_new_training_begins_with_the_untrained_model_as_epoch_0(tmp_path: Path) -> None:
    training = task()
    state, score = begin(training, report(training, tmp_path))
    assert np.array_equal(state.parameters, fresh(training).parameters)
    assert state.at.loss_before == score.loss == evaluate(training, fresh(training)).loss
    (line,) = epochs(tmp_path / "progress")
    assert (line["epoch"], line["loss"], line["accuracy"]) == (0, score.loss, score.accuracy)


def test_a_resumed_training_begins_where_the_checkpoint_ends(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    training = task()
    folder = saved(training, tmp_path, 2)
    resumed = task(RESUME_FROM=str(folder))
    state, score = begin(resumed, report(resumed, tmp_path))
    expected = trained(training, fresh(training), 2)
    assert same(state, expected)
    assert score == evaluate(training, expected)
    assert f"resumed from {folder} after 10 steps, in epoch 3" in capfd.readouterr().out
    assert epochs(tmp_path / "progress") == [], "no epoch has ended"


def test_without_the_folder_to_resume_from_the_training_is_new_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training = task(RESUME_FROM=str(tmp_path / "attempt-0.resume"))
    state, score = begin(training, report(training, tmp_path))
    assert np.array_equal(state.parameters, fresh(training).parameters)
    assert state.at.loss_before == score.loss
    said = capfd.readouterr().out.splitlines()
    assert said[0] == f"RESUME_FROM {tmp_path}/attempt-0.resume does not exist: there is nothing to resume from"
    assert said[1].startswith("epoch 0/20")


def test_a_link_to_a_checkpoint_is_as_good_as_its_folder(tmp_path: Path) -> None:
    training = task()
    (tmp_path / "attempt-1").mkdir()
    saved(training, tmp_path / "attempt-1", 2)
    (tmp_path / "attempt-1.resume").symlink_to("attempt-1/checkpoint-epoch-2")
    resumed = task(RESUME_FROM=str(tmp_path / "attempt-1.resume"))
    state, _ = begin(resumed, report(resumed, tmp_path))
    assert same(state, trained(training, fresh(training), 2))


@pytest.mark.parametrize("broken", ["a link to nothing", "a file", "an empty folder", "below a file"])
def test_what_is_there_and_no_checkpoint_is_an_error(tmp_path: Path, broken: str) -> None:
    place = tmp_path / "attempt-1.resume"
    match broken:
        case "a link to nothing":
            place.symlink_to("attempt-1/checkpoint-epoch-2")
        case "a file":
            place.touch()
        case "an empty folder":
            place.mkdir()
        case "below a file":
            place.touch()
            place = place / "checkpoint-epoch-2"
    resumed = task(RESUME_FROM=str(place))
    with pytest.raises(InvalidTrainerSetting, match=rf"RESUME_FROM {place} is not a whole checkpoint \("):
        begin(resumed, report(resumed, tmp_path))


def test_a_position_beyond_the_data_is_refused(tmp_path: Path) -> None:
    folder = saved(task(), tmp_path, 1)
    facts = json.loads((folder / "state.json").read_text())
    facts["position"]["samples"] = 80
    (folder / "state.json").write_text(json.dumps(facts))
    resumed = task(RESUME_FROM=str(folder))
    with pytest.raises(InvalidTrainerSetting, match="more samples than synthetic has here"):
        begin(resumed, report(resumed, tmp_path))
