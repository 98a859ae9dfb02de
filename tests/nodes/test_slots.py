"""Labs on one host have numbers of their own, and clear away what dead ones left."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.nodes import slots
from tests.nodes.slots import taken

ROOT = Path(__file__).parents[2]
HOLD = """
import sys
from pathlib import Path
from tests.nodes.slots import taken
with taken(Path(sys.argv[1])) as slot:
    left = Path(sys.argv[2])
    left.mkdir()
    slot.note(left, [])
    print(slot.number, flush=True)
    sys.stdin.read()
"""


def test_two_labs_at_once_have_different_numbers(tmp_path: Path) -> None:
    with taken(tmp_path) as first:
        with taken(tmp_path) as second:
            assert (first.number, second.number) == (0, 1)
        with taken(tmp_path) as third:
            assert third.number == 1
    with taken(tmp_path) as fourth:
        assert fourth.number == 0


def test_what_a_killed_process_has_noted_is_removed_by_the_next(tmp_path: Path) -> None:
    locks, left = tmp_path / "locks", tmp_path / "left"
    command = [sys.executable, "-c", HOLD, str(locks), str(left)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        with taken(locks) as beside:
            assert (beside.number, left.exists()) == (1, True)
        process.kill()
    assert left.exists()
    with taken(locks) as after:
        assert (after.number, left.exists()) == (0, False)


def test_what_was_cleared_away_once_is_not_looked_for_again(tmp_path: Path) -> None:
    with taken(tmp_path / "locks") as slot:
        slot.note(tmp_path / "left", [])
        slot.clear()
        (tmp_path / "left").mkdir()
        slot.clear()
    assert (tmp_path / "left").exists()


def test_there_is_an_end_to_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MOST", 1)
    with taken(tmp_path), pytest.raises(RuntimeError, match="1 labs run on this host"), taken(tmp_path):
        pass
