"""Programs that an image would bring along: holdfast itself, and TensorBoard."""

import sys
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.local.kubelet.context import own_interpreter
from holdfast.local.kubelet.launch import NotInstalled, adapted_to_tensorboard
from tests.local.kubelet.bench import Bench, python, shell, state, status_of, terminated

# Says what it was asked, and stays.
FAKE = '#!/bin/sh\necho "$@"\nexec sleep 1000\n'


@pytest.mark.parametrize(
    ("written", "run"),
    [
        (["holdfast", "sidecar"], [sys.executable, "-m", "holdfast", "sidecar"]),
        (["python3", "-c", "pass"], [sys.executable, "-c", "pass"]),
        (["sh", "holdfast"], ["sh", "holdfast"]),
        (["./holdfast"], ["./holdfast"]),
        ([], []),
    ],
)
def test_the_word_holdfast_is_this_very_holdfast(written: list[str], run: list[str]) -> None:
    assert own_interpreter(written) == run


async def test_an_init_container_runs_this_holdfast_even_where_no_such_command_is_found(bench: Bench) -> None:
    path = [{"name": "PATH", "value": "/nowhere"}]
    init = {"name": "version", "image": "holdfast:any", "command": ["holdfast", "version"], "env": path}
    pod = await bench.ended(python("print('trained')"), initContainers=[init])
    assert pod.status["phase"] == "Succeeded", pod.status
    assert __version__ in await bench.log(pod.metadata.key, container="version")
    assert await bench.log(pod.metadata.key) == "trained\n"


async def test_an_init_container_that_fails_says_why_and_the_training_does_not_start(bench: Bench) -> None:
    init = {"name": "first", "image": "holdfast:any", "command": ["holdfast", "sidecar"]}
    init["terminationMessagePolicy"] = "FallbackToLogsOnError"
    pod = await bench.ended(python("print('trained')"), initContainers=[init])
    assert pod.status["phase"] == "Failed"
    assert "not set" in terminated(pod, "first", kind="initContainerStatuses")["message"]
    assert await bench.log(pod.metadata.key) == ""


def test_tensorboard_listens_on_its_pods_own_address(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text(FAKE)
    (tmp_path / "tensorboard").chmod(0o700)
    argv = ("tensorboard", "--logdir", "/x", "--bind_all", "--port", "6006")
    assert adapted_to_tensorboard(argv, address="127.3.2.1", path=str(tmp_path)) == (
        "tensorboard",
        "--logdir",
        "/x",
        "--host=127.3.2.1",
        "--port",
        "6006",
    )


def test_other_commands_stay_as_they_are() -> None:
    argv = ("sh", "-c", "tensorboard --bind_all", "--bind_all")
    assert adapted_to_tensorboard(argv, address="127.3.2.1", path="/nowhere") == argv


def test_a_missing_tensorboard_says_what_to_install() -> None:
    with pytest.raises(NotInstalled, match="pip install tensorboard"):
        adapted_to_tensorboard(("tensorboard",), address="127.3.2.1", path="/nowhere")


async def test_a_pod_waits_for_tensorboard_to_be_installed_and_others_run_meanwhile(
    bench: Bench, tmp_path: Path
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    board = {
        "name": "main",
        "image": "tensorboard:any",
        "command": ["tensorboard", "--logdir", "/x", "--bind_all"],
        "env": [{"name": "PATH", "value": f"{folder}:/usr/bin:/bin"}],
    }
    key = await bench.start(board, name="board", restartPolicy="Always")
    waiting = await bench.until(
        key,
        lambda pod: state(pod).get("waiting", {}).get("reason") == "CreateContainerError",
        "it says what is missing",
    )
    assert "pip install tensorboard" in state(waiting)["waiting"]["message"]
    assert (waiting.status["phase"], status_of(waiting)["restartCount"]) == ("Pending", 0)
    assert (await bench.ended(shell("true"), name="other")).status["phase"] == "Succeeded"
    program = folder / "tensorboard"
    program.write_text(FAKE)
    program.chmod(0o700)
    pod = await bench.phase(key, "Running")
    assert await bench.logged(key, "--host") == f"--logdir /x --host={pod.status['podIP']}\n"
