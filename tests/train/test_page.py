"""The script on the page runs: outside holdfast, from the beginning, and from any of its checkpoints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import blocks

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "script.py"
    file.write_text(blocks((ROOT / "docs" / "sdk.md").read_text(), "python")[0])
    return file


def said(script: Path, **variables: str) -> str:
    environ = {"PYTHONPATH": str(ROOT / "src"), **variables}
    done = subprocess.run([sys.executable, script], env=environ, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_outside_it_leaves_nothing(script: Path) -> None:
    assert said(script).startswith("slope 2.9")
    assert list(script.parent.iterdir()) == [script]


def test_resumed_from_any_checkpoint_it_ends_as_if_it_had_not_stopped(script: Path, tmp_path: Path) -> None:
    saved, progress = tmp_path / "saved", tmp_path / "progress"
    whole = said(script, CHECKPOINT_DIR=str(saved), PROGRESS_FILE=str(progress))
    assert len(list(saved.iterdir())) == 20
    assert [json.loads(line)["epoch"] for line in progress.read_text().splitlines()] == list(range(1, 21))
    for epoch in (1, 7, 19):
        assert said(script, RESUME_FROM=str(saved / f"checkpoint-epoch-{epoch}")) == whole


def test_a_notice_within_an_epoch_is_answered_there_and_the_end_is_the_same(script: Path, tmp_path: Path) -> None:
    whole = said(script)
    (tmp_path / "notice").write_text("drain\n")
    rare = {"CHECKPOINT_FREQUENCY": "100", "HOLDFAST_NOTICE_FILE": str(tmp_path / "notice")}
    said(script, CHECKPOINT_DIR=str(tmp_path / "saved"), **rare)
    answer = tmp_path / "saved" / "checkpoint-epoch-1"
    assert json.loads((answer / ".holdfast-complete").read_text())["step"] == 1
    assert said(script, RESUME_FROM=str(answer)) == whole
