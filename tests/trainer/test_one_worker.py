"""python -m holdfast.trainer as one process: what it prints, leaves and returns."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from holdfast.api.core.objects import ContainerStateTerminated
from holdfast.pods.failure import is_permanent, termination_text
from tests.trainer.test_data import write_mnist
from tests.trainer.workers import Processes, end, epochs

FLOORS = {"linear": 0.90, "mlp": 0.95, "cnn": 0.95}


@pytest.mark.parametrize("model", FLOORS)
def test_the_digits_are_learned_to_the_promised_accuracy(processes: Processes, model: str) -> None:
    ended = processes.run(MODEL=model)
    assert (ended.code, ended.err) == (0, "")
    assert ended.summary["accuracy"] >= FLOORS[model]
    assert ended.summary["lossAfter"] < ended.summary["lossBefore"] / 2
    assert ended.summary["epochs"] == 20


def test_the_log_the_progress_and_the_last_word_say_the_same(processes: Processes, tmp_path: Path) -> None:
    ended = processes.run(EPOCHS=3, PROGRESS_FILE=tmp_path / "progress")
    said = ended.out.splitlines()
    assert said[0].startswith("training mlp (9610 parameters) on digits (1437 samples, 360 held out) with adam and 1")
    progress = epochs(tmp_path / "progress")
    assert [line["epoch"] for line in progress] == [0, 1, 2, 3]
    assert {line["epochs"] for line in progress} == {3}
    assert "trainLoss" not in progress[0]
    assert all(line["trainLoss"] > 0 for line in progress[1:])
    assert [line.split("  ")[0] for line in said[1:-1]] == ["epoch 0/3", "epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert json.loads((tmp_path / "termination-log").read_text()) == ended.summary
    assert (ended.summary["lossBefore"], ended.summary["lossAfter"]) == (progress[0]["loss"], progress[-1]["loss"])
    assert ended.summary["accuracy"] == progress[-1]["accuracy"]


def test_mnist_trains_from_its_folder(processes: Processes, tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    ended = processes.run(DATASET="mnist", DATA_DIR=write_mnist(folder), MODEL="cnn", EPOCHS=2)
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"MODEL": "resnet50"}, "MODEL is 'resnet50': the reference trainer knows linear, mlp, cnn"),
        ({"DATASET": "imagenet"}, "DATASET is 'imagenet': the reference trainer knows digits, synthetic, mnist"),
        ({"MODEL": "a\nb\x1b[31m"}, r"MODEL is 'a\nb\x1b[31m'"),
        ({"EPOCHS": "abc"}, "EPOCHS is 'abc': write a whole number from 1"),
        ({"LEARNING_RATE": "-1"}, "LEARNING_RATE is '-1': write a number above 0"),
        ({"OPTIMIZER": "lion"}, "OPTIMIZER is 'lion': the reference trainer knows adam, sgd, adamw, rmsprop"),
        ({"PARAM_DROPOUT": "0.1"}, "PARAM_DROPOUT is not a parameter"),
        ({"RANK": "0"}, "RANK is set and WORLD_SIZE, MASTER_ADDR, MASTER_PORT not"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG is not"),
        ({"DATASET": "mnist", "DATA_DIR": "/nowhere"}, "DATA_DIR /nowhere has no train-images"),
        ({"RESUME_FROM": "/dev/null"}, "RESUME_FROM /dev/null is not a whole checkpoint (Not a directory)"),
        ({"CHECKPOINT_DIR": "/dev/null/here"}, "can't write to CHECKPOINT_DIR /dev/null/here: Not a directory"),
    ],
)
def test_what_can_t_be_done_is_one_line_and_exit_code_2_with_a_reason_for_the_operator(
    processes: Processes, tmp_path: Path, environ: dict[str, str], said: str
) -> None:
    ended = processes.run(**environ)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1), ended.err
    assert said in ended.err
    left = ContainerStateTerminated(exit_code=2, message=(tmp_path / "termination-log").read_text())
    assert (is_permanent(left), termination_text(left)) == (True, ended.err.strip())


def test_a_training_that_diverges_fails_with_one_line(processes: Processes, tmp_path: Path) -> None:
    ended = processes.run(LEARNING_RATE="1e30", OPTIMIZER="sgd")
    assert (ended.code, len(ended.err.splitlines())) == (1, 1), ended.err
    assert not (tmp_path / "termination-log").exists()
    assert "the training has diverged: the loss is" in ended.err


def test_six_epochs_are_three_and_three_more_to_the_last_bit(processes: Processes, tmp_path: Path) -> None:
    whole, first, second = (tmp_path / name for name in ("whole", "first", "second"))
    straight = processes.run(EPOCHS=6, CHECKPOINT_DIR=whole, CHECKPOINT_FREQUENCY=3)
    processes.run(EPOCHS=3, CHECKPOINT_DIR=first, CHECKPOINT_FREQUENCY=3)
    resumed = processes.run(
        EPOCHS=6, CHECKPOINT_DIR=second, RESUME_FROM=first / "checkpoint-epoch-3", PROGRESS_FILE=tmp_path / "progress"
    )
    assert resumed.code == 0
    assert resumed.summary == straight.summary
    assert f"resumed from {first}/checkpoint-epoch-3 after 135 steps, in epoch 4" in resumed.out
    assert [line["epoch"] for line in epochs(tmp_path / "progress")] == [4, 5, 6]
    assert sorted(folder.name for folder in whole.iterdir()) == ["checkpoint-epoch-3", "checkpoint-epoch-6"]
    assert files(whole / "checkpoint-epoch-6") == files(second / "checkpoint-epoch-6")


def files(checkpoint: Path) -> dict[str, object]:
    """All that a checkpoint says; archives carry the time of day, so that their arrays are compared."""
    found: dict[str, object] = {"state.json": (checkpoint / "state.json").read_text()}
    for name in ("model.npz", "optimizer.npz"):
        with np.load(checkpoint / name) as arrays:
            found |= {f"{name}/{each}": arrays[each].tobytes() for each in arrays}
    return found


def test_the_last_epoch_is_saved_whatever_the_frequency(processes: Processes, tmp_path: Path) -> None:
    processes.run(EPOCHS=5, CHECKPOINT_DIR=tmp_path / "saved", CHECKPOINT_FREQUENCY=2)
    assert sorted(folder.name[-1] for folder in (tmp_path / "saved").iterdir()) == ["2", "4", "5"]


def test_a_training_that_was_done_already_only_reports(processes: Processes, tmp_path: Path) -> None:
    first = processes.run(EPOCHS=2, CHECKPOINT_DIR=tmp_path / "saved")
    again = processes.run(EPOCHS=2, RESUME_FROM=tmp_path / "saved" / "checkpoint-epoch-2")
    assert again.code == 0
    assert again.summary == first.summary


def test_a_closed_log_does_not_stop_a_training(processes: Processes, tmp_path: Path) -> None:
    process = processes.start(EPOCHS=3, PROGRESS_FILE=tmp_path / "progress")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait() == 0
    assert len(epochs(tmp_path / "progress")) == 4


def test_blas_has_one_thread_unless_the_environment_says_otherwise() -> None:
    script = "import os, holdfast.trainer.__main__ as m; os.environ['MODEL'] = 'x'; m.main(); print(os.environ[N])"
    for given, expected in (({}, "1"), ({"OPENBLAS_NUM_THREADS": "2"}, "2")):
        code = script.replace("N]", "'OPENBLAS_NUM_THREADS']")
        done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


def test_without_numpy_the_line_says_what_to_install(tmp_path: Path, processes: Processes) -> None:
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError(name='numpy')")
    ended = end(processes.start(PYTHONPATH=tmp_path))
    assert (ended.code, ended.err) == (2, "the reference trainer needs numpy: pip install numpy\n")
