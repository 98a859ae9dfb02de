"""What is said of a lost worker: of which container, with what code, in which words."""

import msgspec
import pytest
from msgspec import structs

from holdfast.api.builtin import Pod
from holdfast.planning.trainingjob.loss import LAST_WORDS
from tests.planning.losses import lost, thrown_out
from tests.trainingjobs import failed, running, stamp, worker


def init_failed(code: int, reason: str = "Error", message: str = "") -> Pod:
    end = {"exitCode": code, "reason": reason, "finishedAt": stamp(5), "message": message}
    waiting = {"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}
    restore = {"name": "holdfast-restore", "state": {"terminated": end}}
    status = {"phase": "Failed", "initContainerStatuses": [restore], "containerStatuses": [waiting]}
    return worker(0, status, node="gpu-3")


def test_a_failed_init_container_is_named_and_its_code_is_not_the_trainings_verdict() -> None:
    loss = lost(init_failed(1, message="/checkpoints is full"))
    assert loss is not None
    assert (
        loss.message == "init container holdfast-restore of worker 0 on gpu-3 exited with code 1: /checkpoints is full"
    )
    assert (loss.cause, loss.exit_code) == ("application", None)


def test_an_init_container_that_ends_well_is_not_blamed() -> None:
    done = {"name": "holdfast-restore", "state": {"terminated": {"exitCode": 0, "finishedAt": stamp(5)}}}
    end = {"name": "trainer", "state": {"terminated": {"exitCode": 7, "finishedAt": stamp(60)}}}
    loss = lost(worker(0, {"phase": "Failed", "initContainerStatuses": [done], "containerStatuses": [end]}))
    assert loss is not None
    assert (loss.message, loss.exit_code) == ("worker 0 exited with code 7", 7)


def test_last_words_are_cut_from_the_front() -> None:
    loss = lost(failed(0, 1, at=stamp(60), message="x" * 100_000 + "the end"))
    assert loss is not None
    assert loss.message.endswith("xthe end")
    assert len(loss.message) < LAST_WORDS + 100


def test_what_others_say_is_made_plain() -> None:
    loss = lost(thrown_out("Evicted", "low on\nmemory " + "y" * 100_000))
    assert loss is not None
    assert "\n" not in loss.message
    assert len(loss.message) < 1200


def test_a_worker_without_a_number_is_still_told_of() -> None:
    pod = failed(0, 1, at=stamp(60))
    pod.metadata.labels.clear()
    loss = lost(pod)
    assert loss is not None
    assert loss.message == "its pod on gpu-3 exited with code 1"


def test_how_the_sidecar_ended_says_nothing_about_the_training() -> None:
    ends = [
        {"name": "holdfast-sidecar", "state": {"terminated": {"exitCode": 137, "finishedAt": stamp(9)}}},
        {"name": "prepare", "state": {"terminated": {"exitCode": 0, "finishedAt": stamp(1)}}},
    ]
    training = {"name": "trainer", "state": {"terminated": {"exitCode": 3, "finishedAt": stamp(8)}}}
    pod = worker(0, {"phase": "Failed", "initContainerStatuses": ends, "containerStatuses": [training]}, node="gpu-3")
    loss = lost(pod)
    assert loss is not None
    assert (loss.exit_code, loss.message) == (3, "worker 0 on gpu-3 exited with code 3")


def with_sidecar(pod: Pod, exit_code: int, *, reason: str = "Error", message: str = "") -> Pod:
    """Its sidecar has ended so."""
    end = {"exitCode": exit_code, "reason": reason, "message": message, "finishedAt": stamp(40)}
    told = {"name": "holdfast-sidecar", "state": {"terminated": end}}
    status = {**msgspec.to_builtins(pod.status), "initContainerStatuses": [told]}
    return structs.replace(pod, status=msgspec.convert(status, type(pod.status)))


@pytest.mark.parametrize("code", [0, 1, 137, 143])
def test_the_trainers_code_counts_whatever_its_sidecar_ended_with(code: int) -> None:
    loss = lost(with_sidecar(failed(0, 3, at=stamp(50), message="no data"), code, message='{"attempt": 0}'), running(1))
    assert loss is not None
    assert (loss.cause, loss.exit_code) == ("application", 3)
    assert loss.message == "worker 0 on gpu-3 exited with code 3: no data"


def test_a_trainer_out_of_memory_counts_whatever_became_of_its_sidecar() -> None:
    loss = lost(with_sidecar(failed(0, 137, at=stamp(50), reason="OOMKilled"), 137, reason="OOMKilled"), running(1))
    assert loss is not None
    assert loss.cause == "outOfMemory"


def test_a_sidecar_out_of_memory_is_not_the_trainings_fault() -> None:
    loss = lost(with_sidecar(failed(0, 1, at=stamp(50)), 137, reason="OOMKilled"), running(1))
    assert loss is not None
    assert (loss.cause, loss.exit_code) == ("application", 1)


def test_other_init_containers_still_tell_why_nothing_started() -> None:
    end = {"exitCode": 2, "reason": "Error", "message": "", "finishedAt": stamp(10)}
    mine = {"name": "fetch", "state": {"terminated": end}}
    pod = worker(0, {"phase": "Failed", "initContainerStatuses": [mine]}, node="gpu-3")
    loss = lost(pod)
    assert loss is not None
    assert loss.message == "init container fetch of worker 0 on gpu-3 exited with code 2"
