"""What is said of a lost worker: of which container, with what code, in which words."""

import msgspec
import pytest
from msgspec import structs

from holdfast.api.core.objects import Pod
from holdfast.decisions import Finish
from holdfast.pods.failure import MAX_TERMINATION_TEXT
from holdfast.trainingjob.decide.failure import find_failure
from holdfast.trainingjob.decide.snapshot import TrainingJobSnapshot
from tests.pods.failures import lost, thrown_out
from tests.trainingjob.decide.decisions import course, ended, seen
from tests.trainingjobs import deleted, failed, node, running, stamp, training_job, worker, workers


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
    assert len(loss.message) < MAX_TERMINATION_TEXT + 100


def test_what_others_say_is_made_plain() -> None:
    loss = lost(thrown_out("Evicted", "low on\nmemory " + "y" * 100_000))
    assert loss is not None
    assert "\n" not in loss.message
    assert len(loss.message) < 1200


def test_a_worker_without_a_number_is_still_reported() -> None:
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


def test_other_init_containers_still_show_why_nothing_started() -> None:
    end = {"exitCode": 2, "reason": "Error", "message": "", "finishedAt": stamp(10)}
    mine = {"name": "fetch", "state": {"terminated": end}}
    pod = worker(0, {"phase": "Failed", "initContainerStatuses": [mine]}, node="gpu-3")
    loss = lost(pod)
    assert loss is not None
    assert loss.message == "init container fetch of worker 0 on gpu-3 exited with code 2"


@pytest.mark.parametrize(
    ("code", "reason", "message", "said"),
    [
        (137, "Error", "rank 1 of 2 joined\nepoch 3", "worker 0 on gpu-3 was killed (SIGKILL)"),
        (143, "Error", "epoch 3", "worker 0 on gpu-3 was killed (SIGTERM)"),
        (139, "Error", "epoch 3\nsegfault", "worker 0 on gpu-3 was killed (SIGSEGV): epoch 3\nsegfault"),
        (134, "", "", "worker 0 on gpu-3 was killed (SIGABRT)"),
        (145, "Error", "", "worker 0 on gpu-3 exited with code 145"),  # SIGCHLD ends nobody
        (255, "Error", "", "worker 0 on gpu-3 exited with code 255"),
        (137, "Strange", "why", "worker 0 on gpu-3 exited with code 137 (Strange): why"),
    ],
)
def test_a_signal_is_named_and_what_was_said_before_a_kill_is_left_out(
    code: int, reason: str, message: str, said: str
) -> None:
    loss = lost(failed(0, code, at=stamp(60), reason=reason, message=message))
    assert loss is not None
    assert loss.message == said


OWN = """epoch 1
Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    main()
  File "/opt/lib/python3.11/site-packages/torch/nn/functional.py", line 2000, in linear
    return torch._C._nn.linear(input)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^
RuntimeError: shape mismatch
and more about it
"""
CHAINED = (
    OWN
    + """
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/me/train.py", line 15, in <module>
    retry()
ValueError: no retry left
bye
"""
)
LIBRARY_ALONE = """Traceback (most recent call last):
  File "/usr/lib/python3.12/runpy.py", line 88, in _run_code
    exec(code)
KeyError: 'x'
"""
RANKED = "".join(f"[rank0]: {line}\n" for line in OWN.splitlines())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OWN, "RuntimeError: shape mismatch (/home/me/train.py:12)"),
        (CHAINED, "ValueError: no retry left (/home/me/train.py:15)"),
        (RANKED, "RuntimeError: shape mismatch (/home/me/train.py:12)"),
        (OWN[60:], "RuntimeError: shape mismatch (/opt/lib/python3.11/site-packages/torch/nn/functional.py:2000)"),
        (LIBRARY_ALONE, "KeyError: 'x' (/usr/lib/python3.12/runpy.py:88)"),
        ('  File "a.py", line 3\n    x = = 1\nSyntaxError: invalid syntax\n', "SyntaxError: invalid syntax (a.py:3)"),
        ('Traceback (most recent call last):\n  File "a.py", line 3', None),
        ("no traceback at all", None),
        ('{"reason": "x", "message": 3', None),
    ],
)
def test_a_traceback_is_shown_by_its_last_line_and_where(text: str, said: str | None) -> None:
    loss = lost(failed(0, 1, at=stamp(60), message=text))
    assert loss is not None
    assert loss.message == f"worker 0 on gpu-3 exited with code 1: {text.strip() if said is None else said}"


# What a new attempt can't change


def not_started(index: int, message: str = 'exec: "trian": executable file not found in $PATH: unknown') -> Pod:
    return failed(index, 128, at=stamp(60), reason="StartError", message=message)


def from_shell(index: int, code: int, *, ran_s: float = 1) -> Pod:
    end = {"exitCode": code, "reason": "Error", "startedAt": stamp(60 - ran_s), "finishedAt": stamp(60)}
    return worker(index, {"phase": "Failed", "containerStatuses": [{"name": "t", "state": {"terminated": end}}]})


PERMANENT = '{"reason": "PermanentFailure", "message": "MODEL is unknown"}'
STARTING = worker(1, {"phase": "Pending"}, node="gpu-3")


@pytest.mark.parametrize(
    ("pods", "permanent"),
    [
        ((failed(0, 2, at=stamp(60), message=PERMANENT),), True),
        # The first to fail may not be the one that knows why.
        ((failed(0, 1, at=stamp(50)), failed(1, 2, at=stamp(60), message=PERMANENT)), True),
        ((failed(0, 2, at=stamp(60)),), False),  # argparse, or no such script
        ((failed(0, 2, at=stamp(60), message='{"reason": "Other", "message": "x"}'),), False),
        ((not_started(0), not_started(1)), True),
        ((from_shell(0, 127), from_shell(1, 127)), True),
        ((from_shell(0, 128), not_started(1)), True),
        ((not_started(0), deleted(STARTING, asked=60)), True),  # it was stopped before it could show the same
        ((not_started(0), running(1)), False),
        ((not_started(0), failed(1, 1, at=stamp(60))), False),
        ((not_started(0),), False),  # what became of the other is not known
        ((from_shell(0, 127, ran_s=60), from_shell(1, 127, ran_s=60)), False),  # a later command is missing
        ((from_shell(0, 126), from_shell(1, 126)), False),
        ((not_started(0, "nvidia-container-cli: initialization error"), not_started(1, "hook failed")), False),
        ((structs.replace(failed(0, 127, at=""), spec=running(0).spec), from_shell(1, 127)), False),
    ],
)
def test_a_cause_is_permanent_only_where_no_attempt_could_end_otherwise(pods: tuple[Pod, ...], permanent: bool) -> None:
    loss = lost(*pods)
    assert loss is not None
    assert (loss.cause, loss.permanent) == ("application", permanent)


def test_the_trainers_own_message_is_shown_without_its_reason() -> None:
    loss = lost(failed(0, 2, at=stamp(60), message=PERMANENT))
    assert loss is not None
    assert loss.message == "worker 0 on gpu-3 exited with code 2: MODEL is unknown"


def test_a_worker_that_is_still_starting_is_waited_for_before_the_command_is_blamed() -> None:
    assert lost(not_started(0), STARTING) is None


@pytest.mark.parametrize(
    "status",
    [
        {"restartCount": 1, "startTime": "2026-01-01T00:00:00Z"},
        {"startTime": "2025-12-31T00:00:00Z"},  # it was suspended since
    ],
)
def test_a_command_that_was_found_before_is_tried_again(status: dict[str, object]) -> None:
    job = training_job(status={"state": "Running", **status})
    pods = (not_started(0), not_started(1))
    loss = find_failure(TrainingJobSnapshot(job=job, current_job=workers(), pods=pods, nodes={"gpu-3": node()}))
    assert loss is not None
    assert not loss.permanent


@pytest.mark.parametrize("reason", ["ImageNotRun", "VolumeNotSupported"])
def test_what_a_machine_refuses_to_run_is_permanent_and_said_in_its_words(reason: str) -> None:
    end = {"exitCode": 128, "reason": "ContainerCannotRun", "message": "no", "finishedAt": stamp(60)}
    status = {"phase": "Failed", "reason": reason, "message": "write a command"}
    container = {"name": "trainer", "state": {"terminated": end}}
    loss = lost(worker(0, {**status, "containerStatuses": [container]}, node="gpu-3"), running(1))
    assert loss is not None
    assert (loss.message, loss.permanent) == ("worker 0 on gpu-3 can't run here: write a command", True)


def test_an_elastic_job_whose_command_nobody_finds_fails_too() -> None:
    observed = seen("Running", current_job=workers(), pods=(not_started(0), not_started(1)), min_workers=1)
    assert ended(observed).reason == "PermanentFailure"
    again = seen("Running", current_job=workers(), pods=(not_started(0), running(1)), min_workers=1)
    assert not isinstance(course(again), Finish)
