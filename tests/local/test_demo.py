"""`holdfast demo`, as a newcomer runs it."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.demo import DemoFailed, Epoch, check
from tests.trainingjobs import training_job


def demo(folder: Path, *, largest_file: int = resource.RLIM_INFINITY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "demo"],
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
    assert "epoch 15/15" in (folder / "worker-0.log").read_text()


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
