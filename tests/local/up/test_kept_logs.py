"""`holdfast logs` of workers that are gone, where real processes said something."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control_plane.waiting import eventually
from tests.local.up.up import Up, training_job

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
    ended = up.holdfast("logs", "-f", "chatty", "--tail", "1")
    assert (ended.returncode, ended.stdout) == (1, "sorry from 1\n")
    last = up.holdfast("logs", "chatty")
    assert last.stdout.endswith("sorry from 1\n")
    assert len(last.stdout) > 64 * 1024
    assert "logs are kept of attempt 0 (worker 0)" in up.holdfast("logs", "chatty", "--attempt=0", "--worker=1").stderr


STOPPED = """
import os, signal, sys, time
worker, attempt = os.environ["RANK"], os.environ["HOLDFAST_ATTEMPT"]
def stop(*_):
    print("worker", worker, "stops in attempt", attempt, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
open(os.path.join(sys.argv[1], f"ready-{attempt}-{worker}-{os.getpid()}"), "w").close()
while attempt != "1":
    if worker == "1" and os.path.exists(os.path.join(sys.argv[1], "break")):
        print("worker 1 breaks", flush=True)
        sys.exit(3)
    time.sleep(0.05)
"""


def started(folder: Path) -> int:
    """How many workers of attempt 0 have run in all."""
    return len(list(folder.glob("ready-0-*")))


async def test_the_logs_of_all_workers_are_there_however_they_ended(up: Up, tmp_path: Path) -> None:
    def apply(*, suspend: bool = False) -> None:
        job = training_job("both", ["python", "-c", STOPPED, str(tmp_path)], numWorkers=2, suspend=suspend)
        assert up.holdfast("apply", "-f", "-", given=job).returncode == 0

    async def ready() -> int:
        return started(tmp_path)

    async def state() -> str:
        status = json.loads(up.holdfast("get", "tj", "both", "-o", "json").stdout).get("status", {})
        return str(status.get("state"))

    apply()
    await eventually(ready, lambda count: count == 2, what="both workers run")
    apply(suspend=True)
    stops = "".join(f"[{worker}] worker {worker} stops in attempt 0\n" for worker in (0, 1))

    async def suspended() -> str:
        return up.holdfast("logs", "both", "--all").stdout

    await eventually(suspended, lambda text: text == stops, what="the logs of both are kept")
    apply()
    await eventually(ready, lambda count: count == 4, what="both workers run again")
    (tmp_path / "break").touch()
    await eventually(state, lambda seen: seen == "Completed", what="the next attempt has completed")
    first = up.holdfast("logs", "both", "--all", "--attempt=0")
    assert first.stdout == (
        "[0] worker 0 stops in attempt 0\n[0] worker 0 stops in attempt 0\n"
        "[1] worker 1 stops in attempt 0\n[1] worker 1 breaks\n"
    ), first.stderr


BREAKS_ONCE = """
import os, sys, time
print("attempt", os.environ["HOLDFAST_ATTEMPT"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
sys.exit(3 if os.environ["HOLDFAST_ATTEMPT"] == "0" else 0)
"""


async def test_following_goes_on_into_the_next_attempt_and_ends_as_the_job_does(up: Up, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    job = training_job("twice", ["python", "-c", BREAKS_ONCE, str(go_on)])
    assert up.holdfast("apply", "-f", "-", given=job).returncode == 0
    follower = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast", "logs", "-f", "twice"),
        env={**os.environ, "KUBECONFIG": str(up.kubeconfig)},
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        assert follower.stdout is not None
        assert await follower.stdout.readline() == b"attempt 0\n"
        go_on.touch()
        out, err = await follower.communicate()
    finally:
        if follower.returncode is None:
            follower.kill()
            await follower.wait()
    assert (follower.returncode, out) == (0, b"attempt 1\n"), err
    assert b"attempt 0 has ended: worker 0" in err
    assert b"exited with code 3" in err
    assert b"following attempt 1" in err
