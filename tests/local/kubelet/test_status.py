"""A pod's status, from what is known of its containers."""

import pytest

from holdfast.cluster.protocol import JSON
from holdfast.local.kubelet.pod_status import (
    ContainerSnapshot,
    PodResult,
    PodSnapshot,
    Running,
    State,
    Terminated,
    Waiting,
    container_status,
    outcome,
    phase,
    pod_status,
    restart_delay_s,
    restarts_again,
)

NOW = "2026-01-01T00:00:10Z"
BEFORE = "2026-01-01T00:00:00Z"
RUNNING = Running(BEFORE)


def ended(code: int) -> Terminated:
    return Terminated(exit_code=code, reason="Error" if code else "Completed")


def fact(
    state: State, *, name: str = "main", started: bool = False, ready: bool = False, **more: object
) -> ContainerSnapshot:
    return ContainerSnapshot(name=name, image="i", state=state, started=started, ready=ready, **more)  # type: ignore[arg-type]  # of Fact


def one(state: State, **more: object) -> PodSnapshot:
    return PodSnapshot(init=(), main=(fact(state, **more),))  # type: ignore[arg-type]  # of Fact


def conditions(status: JSON) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in status["conditions"]}


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        (one(Waiting()), "Pending"),
        (one(RUNNING), "Running"),
        (one(ended(0)), "Running"),  # until the pod as a whole has ended
        (one(Waiting("CrashLoopBackOff"), last=ended(1)), "Running"),
        (PodSnapshot(init=(fact(RUNNING),), main=(fact(Waiting()),)), "Pending"),
        (PodSnapshot(init=(fact(ended(1)),), main=(fact(Waiting()),)), "Pending"),
        (PodSnapshot(init=(fact(ended(0)),), main=(fact(RUNNING),)), "Running"),
        (PodSnapshot(init=(fact(RUNNING, is_sidecar=True),), main=(fact(Waiting()),)), "Pending"),
        (PodSnapshot(init=(fact(RUNNING, is_sidecar=True, started=True),), main=(fact(RUNNING),)), "Running"),
        (PodSnapshot(init=(), main=(fact(RUNNING), fact(Waiting(), name="b"))), "Pending"),
        (PodSnapshot(init=(), main=(fact(ended(0)),), result=PodResult(phase="Failed")), "Failed"),
    ],
)
def test_the_phase_follows_the_containers_until_there_is_a_verdict(snapshot: PodSnapshot, expected: str) -> None:
    assert phase(snapshot) == expected


@pytest.mark.parametrize(
    ("states", "expected"),
    [((ended(0), ended(0)), "Succeeded"), ((ended(0), ended(1)), "Failed"), ((ended(0), Waiting()), "Failed")],
)
def test_a_pod_succeeds_when_all_its_main_containers_did(states: tuple[State, ...], expected: str) -> None:
    assert outcome([fact(state) for state in states]) == expected


def test_a_pod_is_ready_when_its_containers_and_sidecars_are() -> None:
    sidecar = fact(RUNNING, name="sidecar", is_sidecar=True, started=True)
    ready = pod_status(PodSnapshot(init=(), main=(fact(RUNNING, ready=True),)), (), NOW)
    unready = pod_status(PodSnapshot(init=(sidecar,), main=(fact(RUNNING, ready=True),)), (), NOW)
    assert conditions(ready) == {"Initialized": "True", "ContainersReady": "True", "Ready": "True"}
    assert conditions(unready)["Ready"] == "False"
    assert unready["conditions"][-1]["message"] == "containers with unready status: [sidecar]"


def test_others_conditions_stay_and_unchanged_ones_keep_their_time() -> None:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": BEFORE}
    initialized = {"type": "Initialized", "status": "True", "lastTransitionTime": BEFORE}
    not_ready = {"type": "Ready", "status": "False", "lastTransitionTime": BEFORE}
    status = pod_status(one(RUNNING, ready=True), (scheduled, initialized, not_ready), NOW)
    assert status["conditions"][0] == scheduled
    times = {condition["type"]: condition["lastTransitionTime"] for condition in status["conditions"]}
    assert times == {"PodScheduled": BEFORE, "Initialized": BEFORE, "ContainersReady": NOW, "Ready": NOW}


def test_a_disrupted_pod_says_so_and_an_ordinary_failure_does_not() -> None:
    lost = PodResult(phase="Failed", reason="NodeLost", message="gone", disrupted=True)
    status = pod_status(PodSnapshot(init=(), main=(fact(ended(137)),), result=lost), (), NOW)
    assert conditions(status)["DisruptionTarget"] == "True"
    assert (status["reason"], status["message"]) == ("NodeLost", "gone")
    failed = pod_status(PodSnapshot(init=(), main=(fact(ended(1)),), result=PodResult(phase="Failed")), (), NOW)
    assert "DisruptionTarget" not in conditions(failed)
    assert failed["conditions"][-1]["reason"] == "PodFailed"


def test_a_container_is_reported_in_the_state_that_it_is_in() -> None:
    assert container_status(fact(Waiting("ContainerCreating", "why")))["state"] == {
        "waiting": {"reason": "ContainerCreating", "message": "why"}
    }
    assert container_status(fact(RUNNING))["state"] == {"running": {"startedAt": BEFORE}}
    end = Terminated(exit_code=137, reason="OOMKilled", signal=9, started_at=BEFORE, finished_at=NOW)
    status = container_status(fact(Waiting("CrashLoopBackOff"), last=end))
    assert status["lastState"]["terminated"] == {
        "exitCode": 137,
        "reason": "OOMKilled",
        "signal": 9,
        "startedAt": BEFORE,
        "finishedAt": NOW,
    }


@pytest.mark.parametrize(
    ("policy", "code", "expected"),
    [
        ("Never", 0, False),
        ("Never", 1, False),
        ("OnFailure", 0, False),
        ("OnFailure", 1, True),
        ("Always", 0, True),
        ("Always", 1, True),
    ],
)
def test_the_restart_policy_says_which_containers_are_restarted(policy: str, code: int, expected: bool) -> None:
    assert restarts_again(policy, code) is expected


def test_restarts_back_off_to_five_minutes() -> None:
    assert [restart_delay_s(crashes) for crashes in range(1, 9)] == [0, 10, 20, 40, 80, 160, 300, 300]
    assert restart_delay_s(10_000) == 300
