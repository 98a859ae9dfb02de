"""Where a training begins."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast.trainer import checkpoint
from holdfast.trainer.errors import BadSetting
from holdfast.trainer.report import Report
from holdfast.trainer.resume import begin
from holdfast.trainer.training import Task, evaluate, fresh
from tests.trainer.tasks import same, task, trained
from tests.trainer.workers import lines


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
    (line,) = lines(tmp_path / "progress")
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
    assert lines(tmp_path / "progress") == [], "no epoch has ended"


def test_a_position_beyond_the_data_is_refused(tmp_path: Path) -> None:
    folder = saved(task(), tmp_path, 1)
    facts = json.loads((folder / "state.json").read_text())
    facts["position"]["samples"] = 80
    (folder / "state.json").write_text(json.dumps(facts))
    resumed = task(RESUME_FROM=str(folder))
    with pytest.raises(BadSetting, match="more samples than synthetic has here"):
        begin(resumed, report(resumed, tmp_path))
