"""Why workers have not started: pods, and what is told about them → a sentence."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.api.core.objects import Pod
from holdfast.api.trainingjob import TrainingJob
from holdfast.pods.start_problems import creation_refused_text, missing_pods, problem_of, startup_step, why_waiting
from holdfast.trainingjob.decide.checkpoints import store_in_use
from tests.recorded import names, recorded
from tests.trainingjobs import training_job, unschedulable, worker


def waiting(index: int, reason: str, message: str = "", *, name: str = "trainer", image: str = "bert:1") -> Pod:
    state = {"waiting": {"reason": reason, "message": message}}
    return worker(
        index,
        {"phase": "Pending", "containerStatuses": [{"name": name, "image": image, "state": state}]},
        node=f"gpu-{index}",
    )


def initializing(*containers: dict[str, Any]) -> Pod:
    trainer = {"name": "trainer", "image": "bert:1", "state": {"waiting": {"reason": "PodInitializing"}}}
    status = {"phase": "Pending", "initContainerStatuses": list(containers), "containerStatuses": [trainer]}
    return worker(0, status, node="gpu-0")


@pytest.mark.parametrize("name", names(with_events=False))
def test_a_pods_own_status_names_the_exact_cause(name: str) -> None:
    scene = recorded(name)
    _, pods = scene.seen("ml")
    assert why_waiting(pods, scene.workers, scene.workers) == scene.says


def test_between_two_attempts_to_pull_the_message_stays_the_same() -> None:
    trying, resting = recorded("err-image-pull"), recorded("image-pull-back-off")
    assert trying.pods != resting.pods
    assert trying.says == resting.says


def test_an_older_kubelet_that_only_says_that_it_waits_still_names_the_image() -> None:
    pod = waiting(0, "ImagePullBackOff", 'Back-off pulling image "bert:1"')
    said = why_waiting([pod], 1, 1)
    assert said.startswith(
        'waiting for 1 of 1 workers: image "bert:1" can\'t be pulled: the kubelet does not say why; '
    )


def test_nothing_known_is_said_plainly() -> None:
    assert why_waiting([], 2, 2) == "waiting for 2 of 2 workers to start"
    assert why_waiting([waiting(0, "ContainerCreating")], 1, 2) == "waiting for 1 of 2 workers to start"


def test_the_cause_of_most_workers_is_shown() -> None:
    pods = [unschedulable(0, "rare"), unschedulable(1, "common"), unschedulable(2, "common")]
    assert why_waiting(pods, 3, 3).endswith(": common")


@given(st.permutations([unschedulable(0, "b"), unschedulable(1, "a"), unschedulable(2, "c")]))
def test_the_order_of_the_pods_does_not_matter(pods: list[Pod]) -> None:
    assert why_waiting(pods, 3, 3).endswith(": a")


def test_a_scheduler_without_a_message_is_quoted_with_its_reason() -> None:
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    assert problem_of(worker(0, {"phase": "Pending", "conditions": [gated]})) == "SchedulingGated"


def test_a_pod_that_runs_has_ended_or_is_being_deleted_waits_for_nothing() -> None:
    phases = ("Running", "Succeeded", "Failed")
    broken = {"name": "trainer", "state": {"waiting": {"reason": "CreateContainerError"}}}
    pods = [worker(index, {"phase": phase, "containerStatuses": [broken]}) for index, phase in enumerate(phases)]
    assert [problem_of(pod) for pod in pods] == ["", "", ""]
    leaving = unschedulable(3, "full")
    leaving = replace(leaving, metadata=replace(leaving.metadata, deletion_timestamp="2026-03-02T09:20:00Z"))
    assert problem_of(leaving) == ""
    assert missing_pods([leaving], 1) == 1


def test_events_of_other_pods_count_for_pods_without_any() -> None:
    pods = [waiting(0, "ContainerCreating"), waiting(1, "ContainerCreating")]
    told = {pod.metadata.uid: "no such volume" for pod in pods}
    assert why_waiting(pods, 2, 2, told) == "waiting for 2 of 2 workers: no such volume"
    assert why_waiting([unschedulable(0, "full")], 1, 2, told) == "waiting for 1 of 2 workers: full"


def test_the_problem_of_a_pod_that_runs_by_now_is_not_shown_any_more() -> None:
    pod = worker(0, {"phase": "Running"}, node="gpu-0")
    assert why_waiting([pod], 1, 2, {pod.metadata.uid: "old"}) == "waiting for 1 of 2 workers to start"


def test_why_no_pod_is_made_counts_for_those_that_are_missing() -> None:
    pod = unschedulable(0, "full")
    assert why_waiting([pod], 3, 3, about_job="quota").endswith(": quota")
    assert why_waiting([pod, unschedulable(1, "full")], 3, 3, about_job="quota").endswith(": full")
    made = waiting(0, "ContainerCreating")
    assert why_waiting([made], 1, 1, about_job="quota") == "waiting for 1 of 1 workers to start"


def test_a_worker_that_failed_needs_a_new_pod() -> None:
    pods = [worker(0, {"phase": "Failed"}), worker(1, {"phase": "Succeeded"}), worker(2, {"phase": "Running"})]
    assert [missing_pods(pods, desired) for desired in (1, 2, 3, 5)] == [0, 0, 1, 3]
    assert why_waiting(pods, 1, 3, about_job="quota") == "waiting for 1 of 3 workers: quota"


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ('Error creating: pods "a-0-x" is forbidden: exceeded quota: q', "exceeded quota: q"),
        ('Error creating: Pod "a-0-x" is invalid: spec: no', 'Pod "a-0-x" is invalid: spec: no'),
        ("Error creating: etcdserver: request timed out", "etcdserver: request timed out"),
        ("something else", "something else"),
    ],
)
def test_a_refusal_is_shown_without_the_name_of_one_pod(message: str, cause: str) -> None:
    assert creation_refused_text(message) == f"their pods are refused: {cause}"


def test_the_first_container_with_a_problem_is_the_one_that_is_named() -> None:
    done = {"name": "fetch", "ready": True, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    broken = {"name": "holdfast-restore", "state": {"waiting": {"reason": "CreateContainerError"}}}
    later = {"name": "later", "state": {"waiting": {"reason": "PodInitializing"}}}
    expected = "init container holdfast-restore can't be started: CreateContainerError"
    assert problem_of(initializing(done, broken, later)) == expected


def test_an_init_container_that_was_killed_is_a_problem_without_words_too() -> None:
    killed = {"name": "fetch", "state": {"terminated": {"exitCode": 0, "signal": 9}}}
    assert problem_of(initializing(killed)) == "init container fetch was killed (SIGKILL)"


def test_a_pod_without_a_problem_shows_how_far_it_is() -> None:
    running = {"name": "holdfast-restore", "image": "holdfast:1", "state": {"running": {}}}
    sidecar = {"name": "holdfast-sidecar", "image": "holdfast:1", "ready": True, "state": {"running": {}}}
    assert startup_step(worker(0, {"phase": "Pending"})) == "the scheduler has not looked at them yet"
    assert startup_step(worker(0, {}, node="gpu-7")) == "the kubelet of gpu-7 has not taken up its pod yet"
    assert startup_step(initializing(sidecar, running)) == "init container holdfast-restore has not finished yet"
    assert startup_step(waiting(0, "ContainerCreating")) == (
        'image "bert:1" is being pulled, or volumes are being mounted'
    )


def test_the_image_that_is_waited_for_is_the_first_that_is_not_there() -> None:
    sidecar = {"name": "holdfast-sidecar", "image": "holdfast:1", "ready": True, "state": {"running": {}}}
    assert startup_step(initializing(sidecar)) == 'image "bert:1" is being pulled, or volumes are being mounted'


def sidecar(**facts: Any) -> dict[str, Any]:
    return {"name": "holdfast-sidecar", "image": "holdfast:1", "ready": False, **facts}


def test_why_a_sidecar_can_not_begin_is_why_the_job_waits() -> None:
    end = {"exitCode": 1, "reason": "Error", "message": "bucket runs: access denied\n"}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}
    said = "init container holdfast-sidecar exited with code 1: bucket runs: access denied"
    # It ends, waits, and is tried again: the words stay the same.
    states: list[dict[str, Any]] = [{"terminated": end}, waiting, {"running": {"startedAt": "2026-01-01T00:00:00Z"}}]
    for state in states:
        pod = initializing(sidecar(state=state, lastState={"terminated": end}))
        assert why_waiting([pod], 1, 1) == f"waiting for 1 of 1 workers: {said}"


def test_a_sidecar_that_failed_once_and_has_begun_since_is_no_problem() -> None:
    end = {"exitCode": 1, "reason": "Error", "message": "no route to host"}
    pod = initializing(sidecar(ready=True, state={"running": {}}, lastState={"terminated": end}))
    assert problem_of(pod) == ""


def test_a_sidecar_that_brings_back_a_checkpoint_takes_its_time() -> None:
    assert startup_step(initializing(sidecar(state={"running": {}}))) == (
        "the checkpoint to resume from is being brought back"
    )


def sharing(name: str, created: str, state: str = "") -> TrainingJob:
    job = training_job(status={"state": state} if state else None)
    return replace(job, metadata=replace(job.metadata, name=name, creation_timestamp=created))


EARLY, LATE = "2026-01-02T03:04:05Z", "2026-01-02T03:04:06Z"


@pytest.mark.parametrize(
    ("others", "named"),
    [
        ([], ""),
        ([sharing("first", EARLY)], "first"),
        ([sharing("first", EARLY, "Running")], "first"),
        ([sharing("first", EARLY, "Suspended")], "first"),
        ([sharing("first", EARLY, "Completed")], ""),
        ([sharing("first", EARLY, "Failed")], ""),
        ([sharing("third", "2026-01-02T03:04:07Z", "Running")], ""),
        ([sharing("a", LATE)], "a"),  # made within one second: the name decides, so that never both wait
        ([sharing("z", LATE)], ""),
        ([sharing("first", EARLY, "Failed"), sharing("a", LATE, "Running")], "a"),
    ],
)
def test_of_two_unfinished_jobs_with_one_store_the_later_waits(others: list[TrainingJob], named: str) -> None:
    job = sharing("second", LATE)
    said = store_in_use(job, [job, *others], "s3://runs/bert")
    assert said.startswith(f"waiting for TrainingJob ml/{named} to end" if named else "")
    assert bool(said) == bool(named)
