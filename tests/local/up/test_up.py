"""`holdfast up`: jobs on this machine, whatever happens to the process that runs them."""

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.control_plane.waiting import eventually
from tests.local.up.up import WORKER, Up, training_job

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
LEAVES_CHILDREN = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with Up(tmp_path / "data", log=tmp_path / "up.log").running() as up:
        yield up


async def states(up: Up) -> dict[str, str]:
    told = await asyncio.to_thread(up.holdfast, "get", "tj", "-o", "json")
    assert told.returncode == 0, told.stderr
    return {
        item["metadata"]["name"]: item.get("status", {}).get("state", "") for item in json.loads(told.stdout)["items"]
    }


async def until_state(up: Up, state: str, *names: str, within_s: float = 120.0) -> None:
    await eventually(
        partial(states, up),
        lambda seen: all(seen.get(name) == state for name in names),
        what=f"{', '.join(names)} {state}",
        within_s=within_s,
    )


async def apply(up: Up, *manifests: str) -> None:
    done = await asyncio.to_thread(partial(up.holdfast, "apply", "-f", "-", given="---\n".join(manifests)))
    assert done.returncode == 0, done.stderr


async def no_process_left(up: Up) -> None:
    await eventually(lambda: asyncio.to_thread(up.processes), lambda found: not found, what="no process is left")


async def test_killed_and_started_again_it_goes_on_with_its_jobs_and_runs_no_worker_twice(
    up: Up, tmp_path: Path
) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    notes = tmp_path / "notes"
    notes.mkdir()
    command = ["python", str(script), str(notes)]
    await apply(up, *(training_job(name, command, workers=2) for name in ("one", "two")))
    await until_state(up, "Running", "one", "two")
    up.kill()
    # What it ran ends with it; should something outlive it, the next start ends that.
    up.start()
    await until_state(up, "Completed", "one", "two")
    assert not list(notes.glob("*.twice"))
    for name in ("one-0", "one-1", "two-0", "two-1"):
        pids = (notes / f"{name}.pids").read_text().split()
        assert len(pids) == 2, f"{name} was started {len(pids)} times"
    up.stop()
    assert up.exit_code == 0
    await no_process_left(up)


async def test_stopped_and_started_again_it_goes_on_too(up: Up, tmp_path: Path) -> None:
    released = tmp_path / "released"
    wait = f"import os, time\nwhile not os.path.exists({str(released)!r}): time.sleep(0.1)"
    await apply(up, training_job("job", ["python", "-c", wait]))
    await until_state(up, "Running", "job")
    up.stop()
    await no_process_left(up)
    up.start()
    released.touch()
    await until_state(up, "Completed", "job")


async def test_the_reference_trainer_runs_where_there_is_no_command(up: Up) -> None:
    manifest = training_job("digits", [], workers=2, model="linear", dataset="digits", hyperparameters={"epochs": 2})
    await apply(up, manifest)
    await until_state(up, "Completed", "digits")
    log = up.holdfast("logs", "digits").stdout
    assert "epoch 2/2" in log


# Its best epoch is its second; all its saves are over within a moment.
BEST_EARLY = """
from holdfast import train
run = train.start()
for epoch in run.epochs(6):
    run.report(loss=abs(epoch - 2) + 0.5)
    with run.checkpoint() as folder:
        (folder / "model").write_text(str(epoch))
"""


async def test_the_best_checkpoint_stays_with_the_newest_and_can_be_downloaded(up: Up, tmp_path: Path) -> None:
    await apply(up, training_job("early", ["python", "-c", BEST_EARLY], checkpoint={"retention": 1}))
    await until_state(up, "Completed", "early")
    status = json.loads(up.holdfast("get", "tj", "early", "-o", "json").stdout)["status"]
    leaves = [Path(status["checkpoint"][which]).name for which in ("best", "last")]
    assert leaves == ["checkpoint-epoch-2", "checkpoint-epoch-6"]
    assert status["epochs"]["bestEpoch"] == 2
    listing = json.loads(up.holdfast("checkpoints", "list", "early", "-o", "json").stdout)["checkpoints"]
    assert [(saved["epoch"], saved["metrics"]["loss"], "best" in saved) for saved in listing] == [
        (6, 4.5, False),
        (2, 0.5, True),
    ]
    done = up.holdfast("checkpoints", "download", "early", "--best", "-o", str(tmp_path / "best"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "best" / "model").read_text() == "2"


NFS = {"storage": {"type": "nfs", "nfsServer": "127.0.0.1", "nfsPath": "/export"}}
CANNOT: dict[str, tuple[dict[str, Any], str]] = {
    "image": ({"image": "pytorch/pytorch:2"}, "this machine runs commands, not images"),
    "nowhere": ({"command": ["/no/such/program"]}, "can't run /no/such/program: No such file or directory"),
    "shell": ({"command": ["sh", "-c", "no-such-program"], "workers": 1}, "no-such-program: not found"),
    "model": ({"model": "gpt5", "dataset": "digits"}, "the reference trainer knows linear"),
    "dataset": ({"model": "mlp", "dataset": "imagenet"}, "the reference trainer knows digits"),
    "nfs": ({"command": ["true"], "checkpoint": NFS}, "this machine mounts nothing"),
}


async def test_what_cannot_run_here_fails_at_once_and_says_why(up: Up) -> None:
    jobs: dict[str, dict[str, Any]] = {
        name: {"command": [], "workers": 2, **spec} for name, (spec, _) in CANNOT.items()
    }
    await apply(up, *(training_job(name, **spec) for name, spec in jobs.items()))
    await until_state(up, "Failed", *CANNOT)
    for item in json.loads(up.holdfast("get", "tj", "-o", "json").stdout)["items"]:
        status = item["status"]
        assert CANNOT[item["metadata"]["name"]][1] in status["failureReason"]
        assert "a new attempt would fail in the same way" in status["failureReason"]
        assert not status.get("restartCount")


async def test_an_exit_code_2_of_the_users_own_program_keeps_its_restart_policy(up: Up) -> None:
    await apply(up, training_job("script", ["python", "/no/such/script.py"], failurePolicy={"backoffLimit": 1}))
    await until_state(up, "Failed", "script")
    status = json.loads(up.holdfast("get", "tj", "script", "-o", "json").stdout)["status"]
    assert (status["restartCount"], status["restarts"]) == (1, {"application": 1})


async def test_a_command_runs_in_the_folder_where_apply_was_called(up: Up, tmp_path: Path) -> None:
    folder, gone = tmp_path / "my project", tmp_path / "gone"
    for each in (folder, gone):
        each.mkdir()
    (folder / "train.py").write_text("import model\nopen('trained', 'w').write(model.NAME)")
    (folder / "model.py").write_text("NAME = 'mine'")
    applied = up.holdfast("apply", "-f", "-", given=training_job("mine", ["python", "train.py"]), cwd=folder)
    assert applied.stdout == f"trainingjob.ml.example.com/mine created; its command runs in {folder}\n", applied.stderr
    lost = training_job("lost", ["python", "train.py"], suspend=True)
    assert up.holdfast("apply", "-f", "-", given=lost, cwd=gone).returncode == 0
    gone.rmdir()
    again = up.holdfast("apply", "-f", "-", given=lost.replace("suspend: true", "suspend: false"), cwd=folder)
    assert again.stdout == "trainingjob.ml.example.com/lost configured\n"
    await until_state(up, "Completed", "mine")
    assert (folder / "trained").read_text() == "mine"
    await until_state(up, "Failed", "lost")
    lost_status = json.loads(up.holdfast("get", "tj", "lost", "-o", "json").stdout)["status"]
    assert f"can't use the working directory {gone}" in lost_status["message"]
    assert "restartCount" not in lost_status
    end = re.compile(r"^\d\d:\d\d mine: finished after \d+s: every worker succeeded$", re.MULTILINE)
    said = await eventually(
        lambda: asyncio.to_thread(up.log.read_text), lambda text: bool(end.search(text)), what="its end is told"
    )
    assert '"level":"info"' not in said


async def test_workers_that_ignore_signals_or_leave_children_are_ended_with_their_job(up: Up) -> None:
    overlay = {"terminationGracePeriodSeconds": 1}
    await apply(
        up,
        training_job("stubborn", ["python", "-c", STUBBORN], podTemplate=overlay),
        training_job("forking", ["python", "-c", LEAVES_CHILDREN], podTemplate=overlay),
    )
    await until_state(up, "Running", "stubborn")
    await until_state(up, "Completed", "forking")
    deleted = up.holdfast("delete", "tj", "stubborn", "forking")
    assert deleted.returncode == 0, deleted.stderr
    await no_process_left(up)


def test_a_second_one_on_the_same_folder_is_refused(up: Up) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "holdfast", "up", f"--data={up.data}"], capture_output=True, text=True, check=False
    )
    assert second.returncode == 1
    assert second.stderr.startswith(f"holdfast: holdfast is up already in {up.data} (process {up.pid})")
    assert len(second.stderr.splitlines()) == 1
    assert up.kubeconfig.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_asked_to_stop_it_ends_its_workers_and_says_that_they_go_on(up: Up, number: signal.Signals) -> None:
    await apply(up, training_job("job", ["python", "-c", "import time; time.sleep(600)"]))
    await until_state(up, "Running", "job")
    assert up.pid
    os.kill(up.pid, number)
    await eventually(lambda: asyncio.to_thread(lambda: up.exit_code), lambda code: code is not None, what="it ends")
    assert up.exit_code == 0
    assert not up.kubeconfig.exists()
    assert "Traceback" not in up.log.read_text()
    await no_process_left(up)


def test_a_database_that_is_none_is_named_and_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "cluster.db").write_bytes(b"this is no database " * 500)
    before = (data / "cluster.db").read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "up", f"--data={data}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert str(data / "cluster.db") in done.stderr
    assert "Traceback" not in done.stderr
    assert (data / "cluster.db").read_bytes() == before


def test_only_who_can_read_its_kubeconfig_can_use_it(up: Up) -> None:
    assert up.kubeconfig.stat().st_mode & 0o077 == 0
    stranger = up.kubeconfig.read_text().replace("token: ", "token: x")
    other = up.data.parent / "stranger"
    other.write_text(stranger)
    refused = subprocess.run(
        [sys.executable, "-m", "holdfast", "get", "tj", f"--kubeconfig={other}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "sign in" in refused.stderr


async def test_the_objects_are_in_one_file_that_stays_sound(up: Up) -> None:
    await apply(up, training_job("job", ["python", "-c", "pass"]))
    await until_state(up, "Completed", "job")
    up.kill()
    with sqlite3.connect(up.data / "cluster.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
