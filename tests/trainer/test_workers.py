"""Several real workers: the same training whatever their number, and a common end."""

import json
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from holdfast.trainer.connection import DATA
from tests.trainer.test_data import write_mnist
from tests.trainer.test_one_worker import files
from tests.trainer.workers import PORT, WAIT_S, Ended, Processes, end, epochs, loopback, wait_for_epochs

LONG = {"EPOCHS": 1_000_000, "DATASET": "synthetic", "PARAM_SAMPLES": 4_000}


def running(processes: Processes, folder: Path, size: int, **environ: object) -> list[subprocess.Popen[str]]:
    """Workers in the middle of a training that would take for ever."""
    workers = processes.start_group(size, PROGRESS_FILE=folder / "progress", **(LONG | environ))
    wait_for_epochs(folder / "progress", 2, workers[0])
    return workers


@pytest.mark.parametrize("model", ["linear", "mlp", "cnn"])
def test_one_two_and_three_workers_train_the_same_model(processes: Processes, tmp_path: Path, model: str) -> None:
    progress = []
    for size in (1, 2, 3):
        file = tmp_path / f"progress-{size}"
        ended = processes.run_group(size, MODEL=model, EPOCHS=3, PROGRESS_FILE=file)
        assert [(each.code, each.err) for each in ended] == [(0, "")] * size
        assert [bool(each.out) for each in ended] == [True] + [False] * (size - 1), "only worker 0 speaks"
        progress.append(epochs(file))
    for several in progress[1:]:
        assert [line["loss"] for line in several] == pytest.approx([line["loss"] for line in progress[0]], rel=1e-3)
        assert [line["trainLoss"] for line in several[1:]] == pytest.approx(
            [line["trainLoss"] for line in progress[0][1:]], rel=1e-3
        )


def test_the_same_workers_give_the_same_bits(processes: Processes, tmp_path: Path) -> None:
    for name in ("one", "two"):
        processes.run_group(3, EPOCHS=2, CHECKPOINT_DIR=tmp_path / name)
    assert files(tmp_path / "one" / "checkpoint-epoch-2") == files(tmp_path / "two" / "checkpoint-epoch-2")


def test_more_workers_than_samples_in_a_batch_still_train(processes: Processes) -> None:
    alone = processes.run(EPOCHS=1, BATCH_SIZE=2, DATASET="synthetic", PARAM_SAMPLES=50)
    ended = processes.run_group(4, EPOCHS=1, BATCH_SIZE=2, DATASET="synthetic", PARAM_SAMPLES=50)
    assert [each.code for each in ended] == [0] * 4
    assert ended[0].summary["lossAfter"] == pytest.approx(alone.summary["lossAfter"], rel=1e-3)


@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_the_variables_of_the_other_frameworks_lead_together_too(processes: Processes, framework: str) -> None:
    address = f"{loopback()}:{PORT}"
    jax = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": 2}
    cluster = {"worker": [address, "127.0.0.1:1"]}
    workers = []
    for rank in range(2):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
        own = jax | {"JAX_PROCESS_ID": rank} if framework == "jax" else {"TF_CONFIG": config}
        workers.append(processes.start(EPOCHS=1, **own))
    ended = [end(worker) for worker in workers]
    assert [(each.code, each.err) for each in ended] == [(0, "")] * 2
    assert "with adam and 2 workers" in ended[0].out


def test_workers_resume_from_a_checkpoint_that_only_worker_0_can_see(processes: Processes, tmp_path: Path) -> None:
    straight = processes.run_group(2, EPOCHS=4, CHECKPOINT_DIR=tmp_path / "whole")
    address = {"MASTER_ADDR": loopback(), "MASTER_PORT": PORT, "WORLD_SIZE": 2}
    folder = tmp_path / "whole" / "checkpoint-epoch-2"
    one = processes.start(RANK=1, EPOCHS=4, RESUME_FROM="/not/on/this/machine", **address)
    resumed = processes.run(RANK=0, EPOCHS=4, RESUME_FROM=folder, CHECKPOINT_DIR=tmp_path / "half", **address)
    assert (resumed.code, end(one).code) == (0, 0)
    assert resumed.summary == straight[0].summary
    assert files(tmp_path / "half" / "checkpoint-epoch-4") == files(tmp_path / "whole" / "checkpoint-epoch-4")


def test_workers_begin_anew_when_worker_0_has_nothing_to_resume_from(processes: Processes, tmp_path: Path) -> None:
    straight = processes.run_group(2, EPOCHS=2)
    address = {"MASTER_ADDR": loopback(), "MASTER_PORT": PORT, "WORLD_SIZE": 2}
    one = processes.start(RANK=1, EPOCHS=2, RESUME_FROM=tmp_path, **address)
    anew = processes.run(RANK=0, EPOCHS=2, RESUME_FROM=tmp_path / "nowhere", **address)
    assert (anew.code, end(one).code) == (0, 0)
    assert f"RESUME_FROM {tmp_path}/nowhere does not exist: there is nothing to resume from" in anew.out
    assert anew.summary == straight[0].summary


def test_a_bad_checkpoint_ends_all_workers_with_the_reason(processes: Processes) -> None:
    ended = processes.run_group(3, RESUME_FROM="/dev/null")
    assert [each.code for each in ended] == [2, 2, 2]
    reason = "RESUME_FROM /dev/null is not a whole checkpoint (Not a directory)\n"
    assert [each.err for each in ended] == [reason, f"worker 0: {reason}", f"worker 0: {reason}"]


def test_data_that_one_worker_lacks_end_all_with_its_reason(processes: Processes, tmp_path: Path) -> None:
    address = {"MASTER_ADDR": loopback(), "MASTER_PORT": PORT, "WORLD_SIZE": 3}
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.mkdir()
    write_mnist(full)
    folders = (full, full, empty)
    workers = [
        processes.start(RANK=rank, DATASET="mnist", DATA_DIR=folder, **address) for rank, folder in enumerate(folders)
    ]
    ended = [end(worker) for worker in workers]
    assert [each.code for each in ended] == [2, 2, 2]
    reason = f"DATA_DIR {empty} has no train-images-idx3-ubyte"
    assert [each.err.startswith(f"worker 2: {reason}") for each in ended] == [True, True, False]
    assert ended[2].err.startswith(reason)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_the_loss_of_any_worker_ends_the_others(processes: Processes, tmp_path: Path, lost: int) -> None:
    workers = running(processes, tmp_path, 3)
    workers[lost].kill()
    ended = [end(worker) for worker in workers]
    assert ended[lost].code == -signal.SIGKILL
    others = [each for rank, each in enumerate(ended) if rank != lost]
    assert [each.code for each in others] == [1, 1]
    assert all(f"lost worker {lost}" in each.err for each in others), others
    assert all(len(each.err.splitlines()) == 1 for each in others), others


def test_a_worker_that_diverges_ends_all_alike(processes: Processes) -> None:
    ended = processes.run_group(2, LEARNING_RATE="1e30", OPTIMIZER="sgd")
    assert [each.code for each in ended] == [1, 1]
    assert all("the training has diverged: the loss is" in each.err for each in ended)


def test_a_checkpoint_that_can_t_be_saved_ends_all_workers_with_the_reason(
    processes: Processes, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    workers = running(processes, tmp_path, 2, CHECKPOINT_DIR=folder)
    folder.rename(tmp_path / "moved")
    ended = [end(worker) for worker in workers]
    assert [each.code for each in ended] == [1, 1]
    assert ended[0].err.startswith(f"can't save the checkpoint {folder}/checkpoint-epoch-")
    assert ended[1].err == f"worker 0: {ended[0].err}"


def test_no_worker_succeeds_when_the_last_checkpoint_could_not_be_saved(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / ".checkpoint-epoch-1.partial").write_text("a file where a folder must go")
    ended = processes.run_group(3, EPOCHS=1, CHECKPOINT_DIR=tmp_path)
    assert [each.code for each in ended] == [1, 1, 1]
    assert not (tmp_path / "termination-log").exists()


def test_a_stuck_worker_holds_up_the_others_until_a_second_signal(processes: Processes, tmp_path: Path) -> None:
    workers = running(processes, tmp_path, 2)
    workers[1].send_signal(signal.SIGSTOP)
    workers[0].send_signal(signal.SIGTERM)
    deadline = time.monotonic() + WAIT_S
    while workers[0].poll() is None:
        assert time.monotonic() < deadline
        workers[0].send_signal(signal.SIGTERM)
        time.sleep(0.1)
    # A third signal may find the interpreter on its way out, without its handlers.
    ended = end(workers[0])
    assert ended.code in (143, -signal.SIGTERM)
    assert ended.err == "stopped by SIGTERM\n"
    workers[1].send_signal(signal.SIGCONT)
    ended = end(workers[1])
    assert ended.code in (1, 143), "it reads of the end, or finds the connection closed"


def test_a_port_in_use_ends_worker_0_with_where_it_wanted_to_listen(processes: Processes) -> None:
    address = loopback()
    with socket.create_server((address, PORT)):
        ended = processes.run(RANK=0, WORLD_SIZE=2, MASTER_ADDR=address, MASTER_PORT=PORT)
    assert (ended.code, ended.err) == (
        1,
        f"worker 0 can't listen on {address}:{PORT} ({address}): Address already in use\n",
    )


def stopped_by_sigterm(processes: Processes, folder: Path, size: int, signalled: int) -> tuple[list[Ended], Path]:
    workers = running(processes, folder, size, CHECKPOINT_DIR=folder / "stopped", CHECKPOINT_FREQUENCY=1_000_000)
    workers[signalled].send_signal(signal.SIGTERM)
    ended = [end(worker) for worker in workers]
    (saved,) = (folder / "stopped").iterdir()
    return ended, saved


@pytest.mark.parametrize(("size", "signalled"), [(1, 0), (3, 0), (3, 2)])
def test_sigterm_to_any_worker_saves_and_stops_all_and_the_training_goes_on_to_the_last_bit(
    processes: Processes, tmp_path: Path, size: int, signalled: int
) -> None:
    ended, saved = stopped_by_sigterm(processes, tmp_path, size, signalled)
    assert [(each.code, each.err) for each in ended] == [(143, "stopped by SIGTERM\n")] * size
    assert ended[0].out.splitlines()[-1] == f"saved {saved}"
    epochs = json.loads((saved / "state.json").read_text())["position"]["epoch"] + 2
    same = LONG | {"EPOCHS": epochs}
    resumed = processes.run_group(size, RESUME_FROM=saved, CHECKPOINT_DIR=tmp_path / "resumed", **same)
    straight = processes.run_group(size, CHECKPOINT_DIR=tmp_path / "straight", CHECKPOINT_FREQUENCY=epochs, **same)
    assert resumed[0].summary == straight[0].summary
    last = f"checkpoint-epoch-{epochs}"
    assert files(tmp_path / "resumed" / last) == files(tmp_path / "straight" / last)


def test_sigint_stops_as_sigterm_does(processes: Processes, tmp_path: Path) -> None:
    (worker,) = running(processes, tmp_path, 1)
    worker.send_signal(signal.SIGINT)
    assert (end(worker).code, end(worker).err) == (130, "stopped by SIGINT\n")


def test_without_a_folder_for_checkpoints_sigterm_only_stops(processes: Processes, tmp_path: Path) -> None:
    (worker,) = running(processes, tmp_path, 1)
    worker.send_signal(signal.SIGTERM)
    assert end(worker).code == 143
    assert sorted(path.name for path in tmp_path.iterdir()) == ["progress"]


def test_sigterm_while_worker_0_waits_for_the_others_is_obeyed_at_once(processes: Processes) -> None:
    address = loopback()
    hub = processes.start(RANK=0, WORLD_SIZE=2, MASTER_ADDR=address, MASTER_PORT=PORT)
    until_listening(address)
    hub.send_signal(signal.SIGTERM)
    ended = end(hub)
    # The interpreter may still name the socket of the knock above, if the signal came while it was being accepted.
    assert ended.code == 143
    assert "stopped by SIGTERM" in ended.err.splitlines()


def test_sigterm_while_a_worker_waits_for_its_welcome_is_obeyed_at_once(processes: Processes) -> None:
    address = loopback()
    with socket.create_server((address, PORT)) as listener:
        listener.settimeout(WAIT_S)
        worker = processes.start(RANK=1, WORLD_SIZE=2, MASTER_ADDR=address, MASTER_PORT=PORT)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1) == DATA, "it says hello"
            worker.send_signal(signal.SIGTERM)
            ended = end(worker)
    assert (ended.code, ended.err) == (143, "stopped by SIGTERM\n")


def until_listening(address: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            socket.create_connection((address, PORT), timeout=WAIT_S).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return
