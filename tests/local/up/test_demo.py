"""`holdfast demo`, as a newcomer runs it."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.demo import DemoFailed, Epoch, check, read_epochs
from holdfast.cli.resource_args import this_command
from tests.api.conftest import ROOT
from tests.trainingjobs import training_job


def demo(folder: Path, *, largest_file: int = resource.RLIM_INFINITY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "demo"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(folder), "HOME": str(folder / "home")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file)),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_it_trains_a_model_and_says_how_well_and_where_the_log_is(tmp_path: Path) -> None:
    done = demo(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Completed" in done.stdout
    assert "15 of 15" in done.stdout
    shown = re.search(r"accuracy\s+│\s+([\d.]+)%", done.stdout)
    assert shown
    assert float(shown.group(1)) >= 90
    assert done.stdout.count("epoch ") >= 15
    (folder,) = tmp_path.iterdir()  # nothing but its own folder was written, and the home was not even made
    assert sorted(path.name for path in folder.iterdir()) == ["progress.jsonl", "worker-0.log", "worker-1.log"]
    assert str(folder / "worker-0.log") in done.stdout.replace("\n", "")
    last = done.stdout.partition("What to try next:")[2].splitlines()
    assert [line.split("  #")[0].split("holdfast ")[1].strip() for line in last if line] == [
        "up",
        "apply -f examples/trainingjob.yaml",
        "get tj -w",
        "logs -f digits",
    ]
    assert "epoch 15/15" in (folder / "worker-0.log").read_text()


def test_a_slow_epoch_s_steps_are_no_epochs(tmp_path: Path) -> None:
    progress = tmp_path / "progress.jsonl"
    done = '{"epoch": 1, "epochs": 2, "loss": 0.5, "accuracy": 0.9, "trainLoss": 0.4}'
    progress.write_text(f'{done}\n{{"epoch": 2, "epochs": 2, "step": 3, "steps": 9}}\n')
    assert read_epochs(progress) == [Epoch(epoch=1, epochs=2, loss=0.5, accuracy=0.9)]


def test_make_says_what_it_installs_before_it_does() -> None:
    command = ["make", "--no-print-directory", "--dry-run", "--what-if=requirements-dev.txt", "demo"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    first, *_ = planned.splitlines()
    assert first.startswith('echo "Installing')
    assert planned.rstrip().endswith("holdfast demo")


@pytest.mark.parametrize(
    ("program", "on_path", "command"),
    [
        ("/x/bin/holdfast", True, "holdfast"),
        ("/x/bin/holdfast", False, "/x/bin/holdfast"),
        (f"{Path.cwd()}/.venv/bin/holdfast", False, ".venv/bin/holdfast"),
        ("/x/holdfast/__main__.py", False, "python -m holdfast"),
    ],
)
def test_commands_to_copy_are_those_that_the_user_can_type(
    program: str, on_path: bool, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if on_path:
        (tmp_path / "holdfast").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [program])
    assert this_command() == command


def test_a_step_that_fails_ends_it_with_the_reason(tmp_path: Path) -> None:
    done = demo(tmp_path, largest_file=30_000)
    assert done.returncode == 1
    assert "cluster.db can't be written" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("status", "accuracy", "reason"),
    [
        ({"state": "Failed", "failureReason": "worker 1 exited with code 1"}, 0.99, "worker 1 exited with code 1"),
        ({"state": "Completed"}, 0.5, "below 90%"),
    ],
)
def test_a_training_that_fails_or_learns_too_little_is_no_success(
    status: dict[str, Any], accuracy: float, reason: str
) -> None:
    epochs = [Epoch(epoch=1, epochs=1, loss=1.0, accuracy=accuracy)]
    with pytest.raises(DemoFailed, match=reason):
        check(training_job(status=status), epochs)
