"""A checkpoint has its name when all of it is on the disk, whatever goes wrong and whenever."""

import contextlib
import errno
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.train import checkpoint
from holdfast.train.environment import CheckpointFailed
from holdfast.train.run import Run
from tests.train.runs import Clock, leftovers, models, save, worker


def test_the_folder_is_a_checkpoint_when_the_block_has_ended(tmp_path: Path) -> None:
    run = worker(tmp_path)
    with run.checkpoint(3) as folder:
        (folder / "nested").mkdir()
        (folder / "nested" / "weights").write_text("w")
        (folder / "model").write_text("m")
        assert models(tmp_path) == {}
    saved = tmp_path / "attempt-0" / "checkpoint-epoch-3"
    assert (saved / "nested" / "weights").read_text() == "w"
    assert checkpoint.is_complete(saved)
    assert models(tmp_path) == {"checkpoint-epoch-3": "m"}
    assert leftovers(tmp_path) == set()


def test_a_save_at_the_end_of_an_epoch_has_what_was_reported_and_one_within_it_what_it_was_given(
    tmp_path: Path,
) -> None:
    clock = Clock()
    run = worker(tmp_path, clock=clock)

    def metrics(**given: float) -> dict[str, float]:
        with run.checkpoint(metrics=given) as folder:
            (folder / "model").write_text("m")
        marker = tmp_path / "attempt-0" / f"checkpoint-epoch-{run.epoch}" / checkpoint.WHOLE
        found: dict[str, float] = json.loads(marker.read_text())["metrics"]
        return found

    for epoch in run.epochs(2):
        for _ in run.batches([1, 2, 3]):
            clock.now_s += 10
            run.report(loss=9.0)
            assert metrics() == {}, "the loss of a batch is not that of the model"
            assert metrics(loss=0.7) == {"loss": 0.7}
        run.report(loss=epoch / 10, accuracy=0.5)
        assert metrics() == {"loss": epoch / 10, "accuracy": 0.5}
        assert metrics(accuracy=0.9, broken=math.nan) == {"loss": epoch / 10, "accuracy": 0.9}


def test_a_block_that_fails_leaves_nothing_and_its_own_error(tmp_path: Path) -> None:
    run = worker(tmp_path)

    def fail() -> None:
        with run.checkpoint(1) as folder:
            (folder / "model").write_text("half")
            raise ValueError("the model is not there")

    with pytest.raises(ValueError, match="the model is not there"):
        fail()
    assert list((tmp_path / "attempt-0").iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_block_that_is_interrupted_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), worker(tmp_path).checkpoint(1):
        raise error
    assert list((tmp_path / "attempt-0").iterdir()) == []


def test_an_empty_checkpoint_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(CheckpointFailed, match="epoch 1 is empty: save into the folder"),
        worker(tmp_path).checkpoint(1),
    ):
        pass
    assert models(tmp_path) == {}


def test_a_checkpoint_of_the_same_name_is_replaced(tmp_path: Path) -> None:
    for text in ("within the epoch", "at its end"):
        save(worker(tmp_path), text, epoch=2)
    assert models(tmp_path) == {"checkpoint-epoch-2": "at its end"}
    assert leftovers(tmp_path) == set()


def test_it_is_replaced_where_names_can_t_be_swapped_too(tmp_path: Path, two_steps: None) -> None:
    for text in ("within the epoch", "at its end"):
        save(worker(tmp_path), text, epoch=2)
    assert models(tmp_path) == {"checkpoint-epoch-2": "at its end"}
    assert leftovers(tmp_path) == set()


def test_an_empty_folder_of_that_name_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "attempt-0" / "checkpoint-epoch-1").mkdir(parents=True)
    save(worker(tmp_path), "m", epoch=1)
    assert models(tmp_path) == {"checkpoint-epoch-1": "m"}


def test_what_a_killed_process_has_left_is_removed_by_the_next_save(tmp_path: Path) -> None:
    partial = tmp_path / "attempt-0" / ".holdfast-saving-0"
    partial.mkdir(parents=True)
    (partial / "model").write_text("half")
    (partial / "old").write_text("of another epoch")
    save(worker(tmp_path), "m", epoch=1)
    assert {path.name for path in (tmp_path / "attempt-0" / "checkpoint-epoch-1").iterdir()} == {
        "model",
        checkpoint.WHOLE,
    }
    assert leftovers(tmp_path) == set()


def test_a_file_or_link_in_the_place_of_the_temporary_folder_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "attempt-0"
    folder.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    (folder / ".holdfast-saving-0").symlink_to(tmp_path / "elsewhere")
    save(worker(tmp_path), "m", epoch=1)
    (folder / ".holdfast-saving-0").touch()
    save(worker(tmp_path), "m", epoch=2)
    assert len(models(tmp_path)) == 2
    assert (tmp_path / "elsewhere" / "kept").exists()


def test_links_and_pipes_in_a_checkpoint_do_not_hold_it_up(tmp_path: Path) -> None:
    with worker(tmp_path).checkpoint(1) as folder:
        (folder / "model").write_text("m")
        (folder / "latest").symlink_to("model")
        (folder / "broken").symlink_to("nowhere")
        os.mkfifo(folder / "pipe")
    assert models(tmp_path) == {"checkpoint-epoch-1": "m"}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: folder.touch(), "File exists"),
        (lambda folder: (folder.mkdir(), (folder / "checkpoint-epoch-1").touch()), "Not a directory"),
    ],
    ids=["a file is the folder", "a file has the name"],
)
def test_a_place_that_can_t_be_used_is_named(tmp_path: Path, spoil: Callable[[Path], Any], words: str) -> None:
    spoil(tmp_path / "attempt-0")
    with pytest.raises(CheckpointFailed, match=f"can't save .*/attempt-0/checkpoint-epoch-1: {words}"):
        save(worker(tmp_path), "m", epoch=1)


def test_a_temporary_folder_that_the_block_took_away_is_an_error(tmp_path: Path) -> None:
    run = worker(tmp_path)

    def take_away() -> None:
        with run.checkpoint(1) as folder:
            folder.rmdir()

    with pytest.raises(CheckpointFailed, match="No such file or directory"):
        take_away()


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "make the volume larger, or keep fewer checkpoints"),
        (errno.EROFS, "the user that the training runs as must be able to write there"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_the_error_says_what_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CheckpointFailed, match=advice):
        save(worker(tmp_path), "m", epoch=1)
    assert list((tmp_path / "attempt-0").iterdir()) == []


def test_a_volume_that_can_t_sync_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", fail)
    save(worker(tmp_path), "m", epoch=1)
    assert models(tmp_path) == {"checkpoint-epoch-1": "m"}


def test_all_is_on_the_disk_before_the_name_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, then their folders; the folder that has the name comes last, after the name was given."""
    synced: list[str] = []
    sync = checkpoint.sync_folder

    def note(path: Path) -> None:
        named = (tmp_path / "attempt-0" / "checkpoint-epoch-1").exists()
        synced.append(f"{path.name}{' after' if named else ''}")
        sync(path)

    monkeypatch.setattr(checkpoint, "sync_folder", note)
    with worker(tmp_path).checkpoint(1) as folder:
        (folder / "nested").mkdir()
        (folder / "nested" / "weights").touch()
        (folder / "model").touch()
    assert set(synced[:-1]) == {"model", ".holdfast-complete", ".holdfast-saving-0", "weights", "nested"}
    assert synced[-1] == "attempt-0 after"


@pytest.mark.parametrize("variables", [{"CHECKPOINT_DIR": ""}, {"rank": 1, "world": 2}], ids=["outside", "rank 1"])
def test_where_nothing_is_kept_the_block_runs_and_leaves_no_file(tmp_path: Path, variables: dict[str, Any]) -> None:
    run = worker(tmp_path, **variables)
    with run.checkpoint(1) as folder:
        (folder / "model").write_text("m")
    assert not folder.exists()
    assert list(tmp_path.iterdir()) == []


# More than a save has operations.
MOMENTS = range(1, 18)


class Dead(BaseException):
    """The process is killed here."""


class Faults:
    """Counts the operations that change the volume, and lets one of them be the last or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, error: OSError | None) -> None:
        self.count, self._at, self._error = 0, at, error
        for place, name in (
            (Path, "mkdir"),
            (Path, "rename"),
            (checkpoint, "sync_folder"),
            (checkpoint, "exchange"),
            (checkpoint, "write_marker"),
            (shutil, "rmtree"),
        ):
            monkeypatch.setattr(place, name, self._counted(getattr(place, name)))

    def _counted(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self._at and self._error is not None and not options.get("ignore_errors"):
                raise self._error
            if self.count >= self._at and self._error is None:
                raise Dead  # nothing that comes after a kill is done
            return operation(*arguments, **options)

        return counted


@pytest.fixture
def two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume that can't swap names, as NFS."""
    monkeypatch.setattr(checkpoint, "exchange", lambda *_: False)


def replaced(folder: Path) -> Run:
    """A run that has saved epochs 1 and 2 and is about to save 2 anew."""
    run = worker(folder)
    save(run, "one", epoch=1)
    save(run, "old two", epoch=2)
    return run


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_at_any_operation_leaves_the_old_or_the_new_and_both_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    run = replaced(tmp_path)
    with monkeypatch.context() as faults:
        counted = Faults(faults, moment, None)
        killed = False
        try:
            save(run, "new two", epoch=2)
        except Dead:
            killed = True
    assert killed == (counted.count >= moment)
    assert models(tmp_path)["checkpoint-epoch-1"] == "one"
    assert models(tmp_path)["checkpoint-epoch-2"] in ("old two", "new two")
    assert all(checkpoint.is_complete(tmp_path / "attempt-0" / name) for name in models(tmp_path))
    save(worker(tmp_path), "again", epoch=2)
    assert models(tmp_path) == {"checkpoint-epoch-1": "one", "checkpoint-epoch-2": "again"}
    assert leftovers(tmp_path) == set()


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.usefixtures("two_steps")
def test_without_swapping_too_a_kill_leaves_the_old_or_the_new_and_both_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    run = replaced(tmp_path)
    with monkeypatch.context() as faults:
        Faults(faults, moment, None)
        with contextlib.suppress(Dead):
            save(run, "new two", epoch=2)
    checkpoint.recover(tmp_path / "attempt-0")
    assert models(tmp_path)["checkpoint-epoch-1"] == "one"
    assert models(tmp_path)["checkpoint-epoch-2"] in ("old two", "new two")
    assert all(checkpoint.is_complete(tmp_path / "attempt-0" / name) for name in models(tmp_path))
    save(worker(tmp_path), "again", epoch=2)
    assert models(tmp_path)["checkpoint-epoch-2"] == "again"
    assert leftovers(tmp_path) == set()


@pytest.mark.parametrize("can_swap", [True, False], ids=["swapped", "in two steps"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_error_at_any_operation_is_raised_and_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int, can_swap: bool
) -> None:
    run = replaced(tmp_path)
    with monkeypatch.context() as faults:
        if not can_swap:
            faults.setattr(checkpoint, "exchange", lambda *_: False)
        Faults(faults, moment, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        possible = {"new two"}
        try:
            save(run, "new two", epoch=2)
        except CheckpointFailed:
            possible.add("old two")
    assert models(tmp_path)["checkpoint-epoch-2"] in possible
    assert models(tmp_path)["checkpoint-epoch-1"] == "one"
    save(run, "three", epoch=3)
    assert leftovers(tmp_path) == set()


def test_the_moments_reach_the_end_of_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for can_swap in (True, False):
        run = replaced(tmp_path)
        with monkeypatch.context() as faults:
            if not can_swap:
                faults.setattr(checkpoint, "exchange", lambda *_: False)
            counted = Faults(faults, 10**9, None)
            save(run, "new two", epoch=2)
        assert 8 <= counted.count < max(MOMENTS)
        assert checkpoint.PARTIAL not in "".join(leftovers(tmp_path))
