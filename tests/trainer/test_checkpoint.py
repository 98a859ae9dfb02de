"""What is saved is what is resumed from, and anything else is refused."""

import errno
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from holdfast.train.checkpoint import resume_position
from holdfast.trainer import checkpoint
from holdfast.trainer.model import OPTIMIZERS
from holdfast.trainer.settings import InvalidTrainerSetting, TrainerError, unusable
from holdfast.trainer.training import State, StopOrSave, Task, fresh, train_epoch
from tests.trainer.tasks import same, task, trained


def save(training: Task, state: State, folder: Path) -> Path:
    return checkpoint.save(folder, training.network, state, training.settings.shape)


def load(training: Task, folder: Path) -> State:
    return checkpoint.load(folder, training.network, fresh(training).moments, training.settings.shape)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_training_goes_on_from_its_checkpoint_to_the_last_bit(tmp_path: Path, optimizer: str) -> None:
    training = task(OPTIMIZER=optimizer)
    saved = trained(training, fresh(training), 3)
    folder = save(training, saved, tmp_path)
    assert folder == tmp_path / "checkpoint-epoch-3"
    assert same(load(training, folder), saved)
    assert same(trained(training, load(training, folder), 6), trained(training, fresh(training), 6))


def test_a_checkpoint_within_an_epoch_has_that_epoch_s_number(tmp_path: Path) -> None:
    training = task()
    middle, _ = train_epoch(training, trained(training, fresh(training), 1), lambda: StopOrSave(save=True))
    folder = save(training, middle, tmp_path)
    assert folder.name == "checkpoint-epoch-2"
    assert same(trained(training, load(training, folder), 3), trained(training, fresh(training), 3))


def test_a_folder_holds_nothing_but_whole_checkpoints(tmp_path: Path) -> None:
    training = task()
    (tmp_path / ".checkpoint-epoch-1.partial").mkdir()
    (tmp_path / ".checkpoint-epoch-1.partial" / "junk").write_text("from a crash")
    save(training, trained(training, fresh(training), 1), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-epoch-1"]
    files = sorted(path.name for path in (tmp_path / "checkpoint-epoch-1").iterdir())
    assert files == [".holdfast-complete", "model.npz", "optimizer.npz", "state.json"]


def test_a_checkpoint_of_the_same_epoch_replaces_the_older_one(tmp_path: Path) -> None:
    training = task()
    begun, _ = train_epoch(training, fresh(training), lambda: StopOrSave(save=True))
    save(training, begun, tmp_path)
    done = trained(training, begun, 1)
    assert same(load(training, save(training, done, tmp_path)), done)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-epoch-1"]


def test_a_checkpoint_says_how_many_epochs_were_done(tmp_path: Path) -> None:
    training = task()
    begun, _ = train_epoch(training, trained(training, fresh(training), 1), lambda: StopOrSave(save=True))
    assert resume_position(save(training, begun, tmp_path))[0] == 1
    assert resume_position(save(training, trained(training, begun, 2), tmp_path)) == (2, 0)


def test_the_weights_are_saved_under_their_names(tmp_path: Path) -> None:
    training = task()
    folder = save(training, fresh(training), tmp_path)
    with np.load(folder / "model.npz") as arrays:
        assert {name: arrays[name].shape for name in arrays} == training.network.shapes


def test_a_folder_that_can_t_be_written_is_refused_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidTrainerSetting, match=r"can't write to CHECKPOINT_DIR .*/file/inside: Not a directory"):
        checkpoint.prepare(tmp_path / "file" / "inside")


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    checkpoint.prepare(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_save_that_fails_says_where(tmp_path: Path) -> None:
    training = task()
    (tmp_path / ".checkpoint-epoch-0.partial").write_text("a file, not a folder")
    with pytest.raises(TrainerError, match=r"can't save the checkpoint .*/checkpoint-epoch-0: File exists"):
        save(training, fresh(training), tmp_path)


def drop(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def change(**position: object) -> Callable[[Path], object]:
    def rewrite(folder: Path) -> None:
        facts = json.loads((folder / "state.json").read_text())
        facts["position"] |= position
        (folder / "state.json").write_text(json.dumps(facts))

    return rewrite


def cut(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-50])


@pytest.mark.parametrize(
    "harm",
    [
        drop("state.json"),
        drop("model.npz"),
        drop("optimizer.npz"),
        cut("state.json"),
        cut("model.npz"),
        cut("optimizer.npz"),
        write("state.json", b"[]"),
        write("state.json", b"{}"),
        write("state.json", b"\xff\xfe"),
        write("model.npz", b""),
        write("model.npz", b"not an archive"),
        lambda folder: np.savez(folder / "model.npz", other=np.zeros(3)),
        lambda folder: np.savez(folder / "optimizer.npz", mean=np.zeros(3, np.float32), square=np.zeros(3, np.float32)),
        change(epoch=-1),
        change(epoch="three"),
        change(train_loss=float("nan")),
        change(updates=None),
    ],
)
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    training = task()
    folder = save(training, fresh(training), tmp_path)
    harm(folder)
    with pytest.raises(InvalidTrainerSetting, match=r"RESUME_FROM .*checkpoint-epoch-0 is not a whole checkpoint"):
        load(training, folder)


@pytest.mark.parametrize("name", ["model.npz", "optimizer.npz"])
def test_a_flipped_bit_in_an_archive_is_refused_or_changes_nothing(tmp_path: Path, name: str) -> None:
    training = task(MODEL="linear")
    saved = fresh(training)
    folder = save(training, saved, tmp_path)
    content = (folder / name).read_bytes()
    # The headers, some of the numbers, and the directory at the end, where a bit means most.
    places = [*range(200), *range(200, len(content) - 400, 97), *range(len(content) - 400, len(content))]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        (folder / name).write_bytes(damaged)
        try:
            loaded = load(training, folder)
        except InvalidTrainerSetting:
            continue
        assert same(loaded, saved), f"byte {place}"


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrainerSetting, match=r"is not a whole checkpoint \(No such file or directory\)"):
        load(task(), tmp_path / "nowhere")


def test_weights_of_another_precision_are_refused(tmp_path: Path) -> None:
    training = task()
    folder = save(training, fresh(training), tmp_path)
    with np.load(folder / "model.npz") as arrays:
        doubled = {name: arrays[name].astype(np.float64) for name in arrays}
    np.savez(folder / "model.npz", allow_pickle=False, **doubled)
    with pytest.raises(InvalidTrainerSetting, match=r"float64 .* not float32"):
        load(training, folder)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    training = task()
    folder = save(training, fresh(training), tmp_path)
    objects = {name: np.array([print], dtype=object) for name in training.network.shapes}
    np.savez(folder / "model.npz", allow_pickle=True, **objects)
    with pytest.raises(InvalidTrainerSetting, match="allow_pickle=False"):
        load(training, folder)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("MODEL", "linear", "model 'mlp', not 'linear'"),
        ("OPTIMIZER", "sgd", "optimizer 'adam', not 'sgd'"),
        ("PARAM_HIDDEN", "9", "hidden 8, not 9"),
        ("PARAM_SEED", "9", "seed 0, not 9"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused_with_what_differs(
    tmp_path: Path, name: str, value: str, said: str
) -> None:
    training = task()
    folder = save(training, fresh(training), tmp_path)
    with pytest.raises(InvalidTrainerSetting, match=f"is of another training: {said}"):
        load(task(**{name: value}), folder)


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    training = task()
    folder = save(training, fresh(training), tmp_path)
    facts = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(facts | {"version": 2}))
    with pytest.raises(InvalidTrainerSetting, match="has the format 2, not 1"):
        load(training, folder)


def test_more_epochs_and_another_rate_may_resume(tmp_path: Path) -> None:
    training = task()
    folder = save(training, fresh(training), tmp_path)
    assert load(task(EPOCHS="99", LEARNING_RATE="0.5", BATCH_SIZE="4"), folder).at.epoch == 0


@pytest.mark.parametrize(("number", "passes"), [(errno.ENOSPC, True), (errno.EIO, True), (errno.EACCES, False)])
def test_a_disk_that_may_be_there_in_the_next_attempt_is_no_bad_setting(number: int, passes: bool) -> None:
    assert isinstance(unusable("can't", OSError(number, "why")), InvalidTrainerSetting) != passes
