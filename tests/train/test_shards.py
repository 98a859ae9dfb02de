"""Every rank saves its part: a checkpoint counts when all parts of the same save are there, and never a mixture."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.train import checkpoint as markers
from holdfast.train import checkpoint as publishing
from holdfast.train.environment import CheckpointFailed
from holdfast.train.run import Run
from tests.train.runs import worker

WORLD = 3
ROOT = Path(__file__).parents[2]


def ranks(folder: Path, *, attempt: int = 0, restart: int = 0) -> list[Run]:
    return [
        worker(
            folder,
            rank=rank,
            world=WORLD,
            shards=True,
            HOLDFAST_ATTEMPT=str(attempt),
            TORCHELASTIC_RESTART_COUNT=str(restart),
        )
        for rank in range(WORLD)
    ]


def save(run: Run, text: str, epoch: int | None = 1) -> None:
    with run.checkpoint(epoch) as folder:
        (folder / f"model-{run.rank}").write_text(text)


def checkpoint(folder: Path, epoch: int = 1) -> Path:
    return folder / "attempt-0" / f"checkpoint-epoch-{epoch}"


def shards(folder: Path, epoch: int = 1) -> list[str]:
    return [path.read_text() for path in sorted(checkpoint(folder, epoch).glob("model-*"))]


def hidden(folder: Path) -> set[str]:
    return {path.name for path in (folder / "attempt-0").glob(".*")} - {publishing.LOCK}


def test_it_is_complete_when_the_last_rank_has_saved(tmp_path: Path) -> None:
    for run in reversed(ranks(tmp_path)):
        assert not checkpoint(tmp_path).exists() or not markers.is_complete(checkpoint(tmp_path))
        save(run, "new")
    assert markers.is_complete(checkpoint(tmp_path))
    assert shards(tmp_path) == ["new"] * WORLD
    assert hidden(tmp_path) == set()


def test_the_first_shard_says_at_once_that_others_are_to_come(tmp_path: Path) -> None:
    save(ranks(tmp_path)[1], "new")
    marker = markers.read_marker(checkpoint(tmp_path))
    assert marker is not None
    assert marker.shards == WORLD


def test_a_rank_on_a_volume_of_its_own_leaves_its_shard_with_its_marker(tmp_path: Path) -> None:
    for run in ranks(tmp_path):
        own = tmp_path / str(run.rank)
        save(worker(own, rank=run.rank, world=WORLD, shards=True), "new")
        left = {path.name for path in checkpoint(own).iterdir()}
        assert left == {f"model-{run.rank}", f".holdfast-complete-{run.rank}"}


def test_one_rank_s_checkpoint_of_one_shard_is_complete(tmp_path: Path) -> None:
    save(worker(tmp_path, shards=True), "alone")
    assert markers.is_complete(checkpoint(tmp_path))


def test_folders_of_the_same_name_come_together(tmp_path: Path) -> None:
    for run in ranks(tmp_path):
        with run.checkpoint(1) as folder:
            (folder / "layers" / "deep").mkdir(parents=True)
            (folder / "layers" / "deep" / f"part-{run.rank}").touch()
    assert len(list((checkpoint(tmp_path) / "layers" / "deep").iterdir())) == WORLD


def test_a_rank_with_nothing_to_save_still_takes_part(tmp_path: Path) -> None:
    first, second, third = ranks(tmp_path)
    save(first, "new")
    for run in (second, third):
        with run.checkpoint(1):
            pass
    assert markers.is_complete(checkpoint(tmp_path))


def test_two_ranks_that_save_the_same_file_get_an_error(tmp_path: Path) -> None:
    first, second, _ = ranks(tmp_path)

    def same_file(run: Run) -> None:
        with run.checkpoint(1) as folder:
            (folder / "model").touch()

    same_file(first)
    with pytest.raises(CheckpointFailed, match=r"two ranks have saved .*/model: give each rank's files names"):
        same_file(second)
    assert not markers.is_complete(checkpoint(tmp_path))
    assert hidden(tmp_path) == set()


def test_a_shard_that_is_saved_twice_is_kept_once(tmp_path: Path) -> None:
    first, *others = ranks(tmp_path)
    save(first, "new")
    save(first, "again")
    for run in others:
        save(run, "new")
    assert shards(tmp_path) == ["new"] * WORLD


@pytest.mark.parametrize("can_swap", [True, False], ids=["swapped", "in two steps"])
def test_what_was_resumed_from_is_replaced_and_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_swap: bool
) -> None:
    if not can_swap:
        monkeypatch.setattr(publishing, "exchange", lambda *_: False)
    for run in ranks(tmp_path):  # as the sidecar copies it from the attempt before
        save(run, "old")
    for run in ranks(tmp_path, attempt=1):
        save(run, "new")
        assert set(shards(tmp_path)) == {"new"}
    assert markers.is_complete(checkpoint(tmp_path))
    assert hidden(tmp_path) == set()


@pytest.mark.parametrize("can_swap", [True, False], ids=["swapped", "in two steps"])
def test_a_complete_one_of_this_attempt_stays_until_the_new_one_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_swap: bool
) -> None:
    if not can_swap:
        monkeypatch.setattr(publishing, "exchange", lambda *_: False)
    for run in ranks(tmp_path):
        save(run, "old")
    for run in ranks(tmp_path, restart=1):
        assert shards(tmp_path) == ["old"] * WORLD
        assert markers.is_complete(checkpoint(tmp_path))
        save(run, "new")
    assert shards(tmp_path) == ["new"] * WORLD
    assert markers.is_complete(checkpoint(tmp_path))
    assert hidden(tmp_path) == set()


def test_shards_of_a_save_that_was_broken_off_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    for run in ranks(tmp_path):
        save(run, "complete")
    for restart in (1, 2):  # the first is broken off after two of three
        runs = ranks(tmp_path, restart=restart)
        for run in runs[:2]:
            save(run, f"restart {restart}")
    assert shards(tmp_path) == ["complete"] * WORLD
    save(runs[2], "restart 2")
    assert shards(tmp_path) == ["restart 2"] * WORLD


def test_saves_within_an_epoch_are_distinguished_by_their_step(tmp_path: Path) -> None:
    loops = []
    for run in ranks(tmp_path):
        next(run.epochs(1))
        loops.append((run, run.batches(range(5))))
    for run, batches in loops:
        next(batches)
        save(run, "step 1", epoch=None)
    for run, batches in loops:
        assert shards(tmp_path) == ["step 1"] * WORLD
        next(batches)
        save(run, "step 2", epoch=None)
    assert shards(tmp_path) == ["step 2"] * WORLD


def test_a_volume_without_locks_is_an_error_and_no_risk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with pytest.raises(CheckpointFailed, match="No locks available"):
        save(ranks(tmp_path)[0], "new")
    assert not checkpoint(tmp_path).exists()


RANK = """
import sys
from pathlib import Path
from tests.train.runs import worker
from tests.train.test_shards import save

folder, rank, attempt = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
run = worker(folder, rank=rank, world=3, shards=True, HOLDFAST_ATTEMPT=attempt)
for epoch in range(1, 9):
    save(run, attempt, epoch)
"""


def _start(folder: Path, rank: int, attempt: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", RANK, str(folder), str(rank), attempt], cwd=ROOT)


def test_ranks_that_save_at_the_same_time_never_mix_two_attempts(tmp_path: Path) -> None:
    for attempt in ("0", "1"):
        processes = [_start(tmp_path, rank, attempt) for rank in range(WORLD)]
        assert [process.wait() for process in processes] == [0] * WORLD
        for epoch in range(1, 9):
            assert markers.is_complete(checkpoint(tmp_path, epoch))
            assert shards(tmp_path, epoch) == [attempt] * WORLD


def test_what_was_resumed_from_stays_beside_shards_that_are_not_complete(
    tmp_path: Path,
) -> None:
    resumed = checkpoint(tmp_path)
    resumed.mkdir(parents=True)  # a copy: the sidecar leaves a manifest and no marker
    (resumed / markers.MANIFEST).write_text('{"epoch": 1, "step": 2}')
    (resumed / "model-0").write_text("resumed")
    runs = ranks(tmp_path, attempt=1)
    save(runs[0], "broken off")
    again = worker(
        tmp_path,
        world=WORLD,
        shards=True,
        RESUME_FROM=str(resumed),
        HOLDFAST_ATTEMPT="1",
        TORCHELASTIC_RESTART_COUNT="1",
    )
    assert again.resumed is not None
    assert (again.resumed / "model-0").read_text() == "resumed"
    assert markers.saved_position(again.resumed) == (1, 2)
    for run in runs[1:]:
        save(run, "broken off")
    assert hidden(tmp_path) == set()
