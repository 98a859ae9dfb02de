"""`holdfast logs` of workers that are gone, where real processes said something."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control_plane.waiting import eventually
from tests.local.up import Up, training_job

# 96 KiB that differ from line to line, then an exit code that tells the attempt.
CHATTY = """
import os, sys
attempt = int(os.environ.get("HOLDFAST_ATTEMPT", "0"))
for number in range(3072):
    print(f"{attempt:02d} {number:027d}x")
print("sorry from", attempt, file=sys.stderr, flush=True)
sys.exit(3)
"""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with Up(tmp_path / "data", log=tmp_path / "up.log").running() as up:
        yield up


async def test_the_end_of_a_log_is_there_when_the_attempt_is_gone(up: Up) -> None:
    job = training_job("chatty", ["python", "-c", CHATTY], failurePolicy={"backoffLimit": 1})
    assert up.holdfast("apply", "-f", "-", given=job).returncode == 0

    async def state() -> str:
        status = json.loads(up.holdfast("get", "tj", "chatty", "-o", "json").stdout).get("status", {})
        return str(status.get("state"))

    await eventually(state, lambda seen: seen == "Failed", what="chatty has failed")
    old = up.holdfast("logs", "chatty", "--attempt", "0", "--worker", "0")
    assert old.returncode == 0, old.stderr
    assert len(old.stdout) == 64 * 1024
    assert old.stdout.endswith(f"{3071:027d}x\nsorry from 0\n")
    assert "worker 0 of attempt 0 exited with code 3" in old.stderr
    last = up.holdfast("logs", "chatty")
    assert last.stdout.endswith("sorry from 1\n")
    assert len(last.stdout) > 64 * 1024
    assert "logs are kept of attempt 0 (worker 0)" in up.holdfast("logs", "chatty", "--attempt=0", "--worker=1").stderr
