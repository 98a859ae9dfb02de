"""A process that is killed while it saves, at any moment: whatever has a checkpoint's name is whole."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.train import checkpoint
from tests.train.runs import worker

ROOT = Path(__file__).parents[2]
FILES = 4

# Saves without end: each file says which save it is of. Every epoch is saved twice, as after a notice.
SAVER = """
import itertools, sys
from pathlib import Path
from tests.train.runs import worker

folder, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
run = worker(folder, rank=rank, world=world, shards=world > 1)
print("ready", flush=True)
for number in itertools.count(2):
    with run.checkpoint(number // 2) as partial:
        for file in range(4):
            (partial / f"{rank}-{file}").write_text(str(number) * 1000)
"""


def start(folder: Path, rank: int, world: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SAVER, str(folder), str(rank), str(world)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill_later(processes: list[subprocess.Popen[str]], rng: random.Random) -> None:
    time.sleep(rng.uniform(0, 0.06))  # the moment is the point: nothing is waited for
    for process in processes:
        process.kill()
        process.communicate()


def check(folder: Path, world: int) -> int:
    """How many complete checkpoints there are; each is of as many files as was said, all of one save."""
    complete = [path for path in folder.glob("attempt-0/checkpoint-epoch-*") if checkpoint.is_complete(path)]
    for path in complete:
        files = [file for file in path.iterdir() if not file.name.startswith(".holdfast-")]
        assert len(files) == FILES * world
        for rank in range(world):
            texts = {file.read_text() for file in files if file.name.startswith(f"{rank}-")}
            assert len(texts) == 1, f"{path} is a mixture"
            assert len(texts.pop()) % 1000 == 0, f"{path} has half a file"
    return len(complete)


@pytest.mark.parametrize("seed", range(20))
def test_a_killed_process_leaves_only_whole_checkpoints(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    kill_later([start(tmp_path, 0, 1)], rng)
    named = list(tmp_path.glob("attempt-0/checkpoint-epoch-*"))
    assert check(tmp_path, 1) == len(named)
    with worker(tmp_path).checkpoint(1_000_000) as folder:
        (folder / "model").touch()
    assert [path.name for path in (tmp_path / "attempt-0").glob(".holdfast-*")] == []


@pytest.mark.parametrize("seed", range(4))
def test_killed_ranks_leave_whole_checkpoints_and_some_that_say_what_is_missing(tmp_path: Path, seed: int) -> None:
    processes = [start(tmp_path, rank, 3) for rank in range(3)]
    kill_later(processes, random.Random(seed))
    check(tmp_path, 3)
    assert all(checkpoint.read_marker(path) for path in tmp_path.glob("attempt-0/checkpoint-epoch-*"))
