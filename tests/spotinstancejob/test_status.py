"""What people read of a job: its phase, its conditions, and one sentence about what is waited for."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.api.spotinstancejob import KIND
from holdfast.api.spotinstancejob_status import SpotInstanceJobStatus
from holdfast.decisions import CleanUp, Finish, StateReason
from holdfast.scheduling.machine_pools import Resting
from holdfast.spotinstancejob.decide.actions import Follow, Record
from holdfast.spotinstancejob.decide.needs import needs_ahead
from holdfast.spotinstancejob.snapshot import RepositoryView, SpotInstanceJobSnapshot, condition_of
from holdfast.spotinstancejob.status import next_status
from tests.spotinstancejob.jobs import image, spot_job
from tests.spotinstancejob.machines import condition, machine
from tests.spotinstancejob.seen import failed_pod, pod_of, replica, seen, serving
from tests.trainingjobs import at, stamp

RESTING = Resting(
    at(60),
    "Stockout",
    "no machine to be had: us-central1-a (asked at 00:00: no capacity); next try at 00:01",
)
LOST: dict[str, Any] = {"cause": "preemption", "message": "machine bert-r0-0-m0 was preempted"}
ORDERED: dict[str, Any] = {"machine": "bert-r0-0-m0", "machineTry": 1, "source": "start"}
CHECKPOINT = {"number": 4, "replica": 1, "job": "bert-r1", "reason": "Recovery", "time": stamp(0)}


def shown(observed: SpotInstanceJobSnapshot) -> SpotInstanceJobStatus:
    return next_status(observed, Record(observed.status), at(0))


def cond(status: SpotInstanceJobStatus, kind: str) -> tuple[str, str, str]:
    found = condition_of(status, kind)
    return (found.status, found.reason, found.message) if found is not None else ("", "", "")


SAVING = "waiting for the checkpoint of replica 1 (CheckpointBackup bert-r1-c4)"
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "message": "Insufficient memory"}
UNJOINED = machine(
    phase="End", step="Deleting", conditions=[condition("Joined", "False", "Login", "no answer on port 22")]
)
UNREAD = machine(phase="Launch", conditions=[condition("Launched", "False", "SecretMissing", "Secret gcp is missing")])
AWAY = RepositoryView(asked_at=at(0), problem="registry.example.com does not answer")
RECOVERING = {**replica(0, "Recovering", attempt=1, **LOST), "nodeName": "gpu-0"}


@pytest.mark.parametrize(
    ("waiting", "facts", "sentence"),
    [
        (replica(0, "Provisioning", **ORDERED), {"machines": (machine(),)}, "waiting for machine bert-r0-0-m0"),
        (replica(0, "Pending", source="start"), {"zones": {0: RESTING}}, RESTING.message),
        (
            replica(0, "Pending", source="start"),
            {"template": None},
            "no node has room, and there is no SpotInstanceVM vm: create it",
        ),
        (
            replica(0, "Provisioning", **ORDERED),
            {"machines": (serving(),), "capacity_taken_by": {0: "its nvidia.com/gpu was taken by pod ml/other"}},
            "machine bert-r0-0-m0 is ready, and its nvidia.com/gpu was taken by pod ml/other",
        ),
        (
            replica(0, "Provisioning", **ORDERED),
            {"machines": (UNJOINED,)},
            "waiting until machine bert-r0-0-m0 is gone (no answer on port 22); another one follows",
        ),
        (replica(0, "Provisioning", **ORDERED), {"machines": (UNREAD,)}, "Secret gcp is missing"),
        (replica(0, "Starting"), {}, "waiting for its pod to start on gpu-0"),
        (
            replica(0, "Starting"),
            {"pods": (), "pod_problems": {"bert-r0": "exceeded quota"}},
            "its pod is refused: exceeded quota",
        ),
        (
            replica(0, "Starting"),
            {"pods": (pod_of(phase="Pending", conditions=[UNSCHEDULED]),)},
            "its pod can't start on gpu-0 yet: Insufficient memory",
        ),
        (
            replica(0, "Starting", restoredFrom="r/c:4"),
            {"jobs": (), "pods": (), "undescribed": frozenset({"r/c:4"}), "repository": AWAY},
            "waiting for the registry to describe r/c:4: registry.example.com does not answer",
        ),
        (replica(0, "Failed", message="its pod exited with code 1"), {}, "its pod exited with code 1"),
    ],
)
def test_one_sentence_says_what_is_waited_for(waiting: Any, facts: Any, sentence: str) -> None:
    assert shown(seen(waiting, **facts)).message == f"0 of 1 replicas run; replica 0: {sentence}"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "looking for the newest image in the repository"),
        ({"source": "start", "retryTime": stamp(20)}, "next try at 2026-01-01T00:00:20Z"),
        ({"source": "start"}, "waiting for the pod of an earlier attempt to stop before it starts on gpu-0"),
        (
            {"awaitedCheckpoint": 4, "nodeName": None, **ORDERED, "source": None},
            f"{SAVING} and waiting for machine bert-r0-0-m0",
        ),
    ],
)
def test_a_lost_replica_says_why_and_what_it_needs(fields: Any, sentence: str) -> None:
    observed = seen(
        {**RECOVERING, **fields}, replica(1), status={"checkpointsInProgress": [CHECKPOINT]}, machines=(machine(),)
    )
    lost = "lost (machine bert-r0-0-m0 was preempted)"
    assert shown(observed).message == f"1 of 2 replicas run; replica 0: {lost}, and {sentence}"


def test_a_machine_that_is_slow_says_itself_what_it_waits_for() -> None:
    joining = machine(phase="Join", message="logging in: no answer on port 22")
    joining = structs.replace(joining, metadata=structs.replace(joining.metadata, creation_timestamp=stamp(0)))
    observed = seen(replica(0, "Provisioning", **ORDERED), machines=(joining,))
    assert list(needs_ahead(observed)) == [at(60)]

    def said(now: float) -> str:
        return next_status(observed, Record(observed.status), at(now)).message or ""

    assert said(59) == "0 of 1 replicas run; replica 0: waiting for machine bert-r0-0-m0"
    assert said(60) == f"{said(59)} (logging in: no answer on port 22)"


def test_replicas_that_wait_for_the_same_are_said_together() -> None:
    waiting = [replica(number, "Pending", source="start") for number in range(2)]
    message = shown(seen(*waiting, zones={0: RESTING, 1: RESTING})).message
    assert message == f"0 of 2 replicas run; replicas 0, 1: {RESTING.message}"


def test_what_is_in_the_way_is_said() -> None:
    assert shown(seen(replica(0), replica(1))).message == "2 of 2 replicas run"
    blocked = seen(replica(0), blocked_by="Job bert-r1 is there already")
    assert shown(blocked).message == "1 of 1 replicas run; Job bert-r1 is there already"


def test_a_credential_that_pods_cant_pull_with_is_said_from_the_start() -> None:
    reference = {"checkpointRepoCredentialRef": {"name": "push", "namespace": "infra"}}
    message = shown(seen(replica(0, "Pending"), job=spot_job(checkpoints=reference))).message or ""
    assert "no pod of ml can pull with a Secret of another namespace" in message
    assert "kubectl -n infra get secret push" in message


def test_a_failed_checkpoint_is_said_until_the_next_one() -> None:
    failed = condition("Checkpointed", "False", "CheckpointFailed", "checkpoint 3 of replica 0 failed: no disk")
    observed = seen(replica(0), status={"conditions": [failed]})
    assert shown(observed).message == (
        "1 of 1 replicas run; checkpoint 3 of replica 0 failed: no disk; the next try is at its next turn"
    )


def test_a_program_that_has_saved_nothing_yet_is_told_so() -> None:
    nothing = condition("Checkpointed", "False", "NothingSaved", "replica 0 was asked to save")
    observed = seen(replica(0), status={"conditions": [nothing]})
    assert shown(observed).message == "1 of 1 replicas run; replica 0 was asked to save"


def test_a_suspended_job_says_what_it_does_and_what_it_will_go_on_from() -> None:
    job = spot_job(spec={"suspend": True})
    saving = seen(replica(0), job=job, status={"checkpointsInProgress": [{**CHECKPOINT, "replica": 0}]})
    assert shown(saving).message == "spec.suspend is true: replica 0 is saved before all is stopped"
    both = {"checkpointsInProgress": [{**CHECKPOINT, "replica": 0}, {**CHECKPOINT, "number": 9, "replica": 1}]}
    two = seen(replica(0), replica(1), job=job, status=both)
    assert shown(two).message == "spec.suspend is true: replicas 0, 1 are saved before all is stopped"
    stopped = seen(replica(0, "Stopped"), job=job, status={"lastCheckpointImage": image(4)})
    assert (shown(stopped).phase, shown(stopped).message) == (
        "Suspended",
        f"spec.suspend is true: set it to false, and the training goes on from {image(4)}",
    )
    never = seen(replica(0, "Stopped"), job=job)
    assert shown(never).message == "spec.suspend is true: set it to false, and the training begins anew"
    assert cond(shown(never), "Running")[:2] == ("False", "Suspended")
    before = seen(job=job, status={"startTime": None})
    assert shown(before).message == "spec.suspend is true: set it to false, and the training begins"


@pytest.mark.parametrize(
    ("replicas", "phase"),
    [
        ([replica(0, "Pending"), replica(1, "Pending")], "Pending"),
        ([replica(0, "Pending"), replica(1, "Provisioning", **ORDERED)], "Provisioning"),
        ([replica(0, "Starting"), replica(1, "Pending")], "Provisioning"),
        ([replica(0), replica(1, "Provisioning", **ORDERED)], "Running"),
        ([replica(0), replica(1, "Recovering")], "Recovering"),
    ],
)
def test_the_phase_is_that_of_its_replicas(replicas: list[Any], phase: str) -> None:
    pods = tuple(pod_of(each["replica"]) for each in replicas if each["phase"] == "Running")
    assert shown(seen(*replicas, pods=pods, machines=(machine(),))).phase == phase


def test_provisioning_is_true_while_machines_are_on_their_way_and_false_with_what_keeps_them() -> None:
    def provisioning(**facts: Any) -> tuple[str, str]:
        return cond(shown(seen(replica(0, "Provisioning", **ORDERED), **facts)), "Provisioning")[:2]

    assert provisioning(machines=(machine(),)) == ("True", "MachinesOrdered")
    inserting = machine(phase="Launch", conditions=[condition("Launched", "False", "Insert", "it is being made")])
    assert provisioning(machines=(inserting,)) == ("True", "MachinesOrdered")
    failing = machine(phase="Launch", conditions=[condition("Launched", "False", "Retrying", "503")])
    assert provisioning(machines=(failing,)) == ("False", "Retrying")
    refused = machine(phase="Launch", conditions=[condition("Launched", "False", "Unauthorized", "revoked")])
    assert provisioning(machines=(refused,)) == ("False", "Unauthorized")
    assert cond(shown(seen(replica(0, "Pending"), zones={0: RESTING})), "Provisioning")[:2] == ("False", "Stockout")
    assert cond(shown(seen(replica(0, "Pending"), template=None)), "Provisioning")[:2] == ("False", "TemplateMissing")
    assert cond(shown(seen(replica(0))), "Provisioning")[:2] == ("False", "NotNeeded")


def test_recovering_is_shown_from_the_first_loss_on_and_then_says_how_it_ended() -> None:
    assert cond(shown(seen(replica(0))), "Recovering") == ("", "", "")
    lost = shown(seen(replica(0, "Recovering", attempt=1, **LOST), replica(1)))
    assert cond(lost, "Recovering") == ("True", "Preemption", "replica 0: machine bert-r0-0-m0 was preempted")
    recovery = {"time": stamp(0), "replica": 0, "cause": "preemption", "source": "survivor", "image": image(4)}
    back = shown(seen(replica(0), status={"recoveries": [recovery]}))
    assert cond(back, "Recovering") == ("False", "Recovered", f"replica 0 went on from {image(4)}")
    anew = shown(seen(replica(0), status={"recoveries": [{**recovery, "source": "start"}]}))
    assert cond(anew, "Recovering")[:2] == ("False", "RestartedFromBeginning")


def test_only_what_runs_is_active() -> None:
    observed = seen(replica(0), replica(1), replica(2, "Starting"), pods=(pod_of(0), failed_pod(1)))
    status = shown(observed)
    assert status.active_replicas == 1
    assert cond(status, "Running")[:2] == ("True", "ReplicasRunning")


def test_at_the_end_exactly_one_of_the_last_conditions_holds() -> None:
    for state in ("Succeeded", "Failed"):
        observed = seen(replica(0), status={"conditions": [condition("Provisioning", "True", "MachinesOrdered")]})
        status = next_status(observed, Finish(StateReason(state, "Completed", "over")), at(5))
        held = [each.type for each in status.conditions if each.status == "True"]
        assert held == [state]
        assert (status.phase, status.message, status.active_replicas) == (state, "over", 0)
        assert status.completion_time == stamp(5)


def test_what_is_only_done_does_not_change_status() -> None:
    observed = seen(replica(0))
    settled = structs.replace(observed, job=structs.replace(observed.job, status=shown(observed)))
    for action in (Follow(), CleanUp()):
        assert next_status(settled, action, at(9)) == settled.status
    assert shown(settled) == settled.status


def test_what_a_job_waits_for_stands_before_the_long_names_of_images() -> None:
    assert [each.name for each in KIND.columns][-2:] == ["MESSAGE", "IMAGE"]
