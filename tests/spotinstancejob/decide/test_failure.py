"""Whether and why an attempt is lost, and which class that is."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from holdfast.api.core.objects import Node, PodCondition
from holdfast.spotinstancejob.decide.failure import LostAttempt, find_lost_attempt, lost_attempts_ahead
from holdfast.spotinstancejob.snapshot import TIMING
from tests.spotinstancejob.jobs import CPU_CONTAINER, spot_job
from tests.spotinstancejob.machines import READY, condition, machine
from tests.spotinstancejob.seen import failed_pod, job_of, pod_of, replica, seen, serving
from tests.trainingjobs import at, deleted, disrupted, node, stamp

TAKEN = [*READY, condition("Preempted", "True", "PreemptionNotice", "the cloud takes it back")]
SPOT = {"holdfast.dev/spot": "true"}


def silent(since: float, **labels: str) -> Node:
    ready = {"type": "Ready", "status": "Unknown", "lastTransitionTime": stamp(since)}
    body = {"metadata": {"name": "gpu-0", "labels": labels}, "status": {"conditions": [ready]}}
    return msgspec.convert(body, Node)


def lost(*, now: float = 100, phase: str = "Running", attempt: int = 0, **facts: Any) -> LostAttempt | None:
    fields = facts.pop("replica", {})
    observed = seen(replica(0, phase, attempt=attempt, **fields), **facts)
    return find_lost_attempt(observed, observed.status.job_statuses[0], at(now), TIMING)


@pytest.mark.parametrize(
    ("facts", "cause", "said"),
    [
        (
            {"machines": (serving(conditions=TAKEN),)},
            "preemption",
            "machine bert-r0-0-m0 was preempted: the cloud takes",
        ),
        ({"nodes": (node("gpu-0", taint="holdfast.dev/preempted"),)}, "preemption", "node gpu-0 is being preempted"),
        ({"nodes": (node("gpu-0", taint="cloud.google.com/impending-node-termination"),)}, "preemption", "node gpu-0"),
        # By the cloud's word, whatever the program said in its last moment.
        ({"machines": (serving(conditions=TAKEN),), "pods": (failed_pod(),)}, "preemption", "was preempted"),
        ({"machines": (serving(phase="End"),)}, "infrastructure", "machine bert-r0-0-m0 was given back"),
        ({"machines": (machine(deleted=True, nodeName="gpu-0"),)}, "infrastructure", "machine bert-r0-0-m0 was given"),
        ({"nodes": ()}, "infrastructure", "node gpu-0 is gone"),
        ({"nodes": (silent(-300),), "now": 0}, "infrastructure", "node gpu-0 has been silent for 300 s"),
        ({"nodes": (silent(-300, **SPOT),), "now": 0}, "preemption", "node gpu-0 has been silent"),
        (
            {
                "pods": (disrupted(deleted(pod_of(), asked=60), "DeletionByTaintManager"),),
                "nodes": (node("gpu-0", labels=SPOT),),
            },
            "preemption",
            "was taken away",
        ),
        (
            {"pods": (disrupted(deleted(pod_of(), asked=60), "EvictionByEvictionAPI"),)},
            "infrastructure",
            "was taken away",
        ),
        ({"pods": (deleted(pod_of(), asked=60),)}, "infrastructure", "was deleted from outside"),
        ({"jobs": ()}, "infrastructure", "Job bert-r0 was deleted from outside"),
        ({"jobs": (job_of(deleted=True),)}, "infrastructure", "Job bert-r0 was deleted from outside"),
        ({"jobs": (job_of(0, "Failed"),), "pods": ()}, "infrastructure", "the pod of Job bert-r0 was deleted"),
        ({"pods": (failed_pod(0, 137, reason="OOMKilled"),)}, "outOfMemory", "ran out of memory"),
        ({"pods": (failed_pod(),)}, "application", "exited with code 1"),
    ],
)
def test_an_attempt_is_lost_for_a_reason_of_one_class(facts: Any, cause: str, said: str) -> None:
    found = lost(**facts)
    assert found is not None
    assert found.failure.cause == cause
    assert said in found.failure.message


def on_exit(operator: str, *values: int, action: str = "FailJob", **fields: Any) -> dict[str, Any]:
    return {"action": action, "onExitCodes": {"operator": operator, "values": [*values], **fields}}


DISRUPTED = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}


@pytest.mark.parametrize(
    ("rules", "is_final"),
    [
        ([], False),
        ([on_exit("In", 3, 42)], True),
        ([on_exit("In", 3)], False),
        ([on_exit("In", 42, action="FailIndex")], True),
        ([on_exit("NotIn", 3)], True),
        ([on_exit("NotIn", 42)], False),
        ([on_exit("In", 42, containerName="training")], True),
        ([on_exit("In", 42, containerName="logs")], False),
        # The first that matches decides.
        ([on_exit("In", 42, action="Count"), on_exit("In", 42)], False),
        ([on_exit("In", 3, action="Ignore"), on_exit("In", 42)], True),
        ([{"action": "FailJob", "onPodConditions": [{"type": "ConfigIssue"}]}], True),
        ([{"action": "FailJob", "onPodConditions": [{"type": "ConfigIssue", "status": "False"}]}], False),
        ([DISRUPTED], False),
    ],
)
def test_a_failure_that_the_template_calls_final_is_followed_by_no_attempt(rules: Any, is_final: bool) -> None:
    pod = failed_pod(exit_code=42)
    issue = msgspec.convert({"type": "ConfigIssue", "status": "True"}, PodCondition)
    pod = structs.replace(pod, status=structs.replace(pod.status, conditions=(issue,)))
    found = lost(pods=(pod,), job=spot_job(job_spec={"podFailurePolicy": {"rules": rules}}))
    assert found is not None
    assert (found.failure.cause, found.failure.permanent) == ("application", is_final)
    assert ("podFailurePolicy calls that final" in found.failure.message) == is_final


def test_what_is_not_the_trainings_fault_is_free_whatever_the_template_calls_it() -> None:
    job = spot_job(job_spec={"podFailurePolicy": {"rules": [DISRUPTED]}})
    found = lost(pods=(disrupted(deleted(pod_of(), asked=60), "EvictionByEvictionAPI"),), job=job)
    assert found is not None
    assert (found.failure.cause, found.failure.permanent) == ("infrastructure", False)


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"machines": (serving(),)},
        {"machines": (serving(conditions=[*READY, condition("Preempted", "False", "NoticeWithdrawn")]),)},
        # The Job will report the success, whatever becomes of the machine.
        {"pods": (pod_of(phase="Succeeded"),), "machines": (serving(conditions=TAKEN),)},
        {"nodes": (silent(-299),), "now": 0},
        # A control plane that was away says nothing about when.
        {"nodes": (node("gpu-0", ready=False),)},
        {"phase": "Starting", "jobs": (), "pods": ()},
    ],
)
def test_an_attempt_that_goes_on_is_not_lost(facts: Any) -> None:
    assert lost(**facts) is None


@pytest.mark.parametrize(
    "pods", [None, (disrupted(deleted(pod_of(), asked=60), "DeletionByTaintManager", "the node is not ready"),)]
)
def test_the_cloud_refutes_that_a_silent_spot_machine_was_preempted(pods: Any) -> None:
    for conditions, cause in (
        (READY, "preemption"),
        ([*READY, condition("Preempted", "False", "MachineRuns")], "infrastructure"),
    ):
        found = lost(nodes=(silent(-300, **SPOT),), machines=(serving(conditions=conditions),), pods=pods, now=0)
        assert found is not None
        assert found.failure.cause == cause


def test_only_while_its_pod_runs_a_loss_is_announced() -> None:
    running = lost(machines=(serving(conditions=TAKEN),))
    ended = lost(machines=(serving(conditions=TAKEN),), pods=(failed_pod(),))
    assert running is not None
    assert ended is not None
    assert (running.is_announced, ended.is_announced) == (True, False)


def test_on_a_machine_that_is_gone_already_nothing_can_be_saved() -> None:
    taken_back = [*READY, condition("Preempted", "True", "TakenBack", "the cloud has taken it back")]
    found = lost(machines=(serving(conditions=taken_back, phase="End"),))
    assert found is not None
    assert (found.failure.cause, found.is_announced) == ("preemption", False)


def test_a_command_that_is_not_found_at_first_is_never_found() -> None:
    missing: dict[str, Any] = {"reason": "StartError", "message": 'exec: "trian": executable file not found in $PATH'}
    first = lost(pods=(failed_pod(0, 128, **missing),))
    later = lost(pods=(failed_pod(0, 128, attempt=1, **missing),), attempt=1)
    assert first is not None
    assert later is not None
    assert (first.failure.permanent, later.failure.permanent) == (True, False)


def unscheduled(**more: Any) -> Any:
    said = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "Insufficient nvidia.com/gpu",
    }
    return pod_of(node="", phase="Pending", conditions=[said], **more)


def test_a_pod_that_does_not_get_its_free_node_looks_for_another_and_on_its_machine_it_waits() -> None:
    assert lost(phase="Starting", pods=(unscheduled(),), now=119) is None
    found = lost(phase="Starting", pods=(unscheduled(),), now=120)
    assert found is not None
    assert found.failure.message == "its pod did not get node gpu-0 within 120 s: Insufficient nvidia.com/gpu"
    own = {"machine": "bert-r0-0-m0"}
    assert lost(phase="Starting", pods=(unscheduled(),), now=900, replica=own, machines=(serving(),)) is None


IMAGE = "registry.example.com/team/checkpoints:1@sha256:" + "1" * 64


def refused(reason: str, message: str) -> Any:
    waiting = {"name": "main", "state": {"waiting": {"reason": reason, "message": message}}}
    return pod_of(phase="Pending", containerStatuses=[waiting])


@pytest.mark.parametrize(
    ("reason", "message", "now", "is_lost", "is_unusable"),
    [
        ("CreateContainerError", "checkpoint archive is not valid", 10, True, True),
        ("ErrImagePull", "connection refused", 10, False, False),
        ("ErrImagePull", "connection refused", 300, True, False),
        ("ErrImagePull", "manifest unknown: not found", 300, True, True),
        ("ContainerCreating", "", 300, False, False),
    ],
)
def test_an_image_that_no_container_can_be_made_of_is_told_from_a_registry_that_is_away(
    reason: str, message: str, now: float, is_lost: bool, is_unusable: bool
) -> None:
    found = lost(
        now=now,
        phase="Starting",
        replica={"restoredFrom": IMAGE, "machine": "bert-r0-0-m0"},
        job=spot_job(CPU_CONTAINER),
        status={"checkpointMode": "container"},
        pods=(refused(reason, message),),
        machines=(serving(),),
    )
    assert (found is not None) == is_lost
    assert (found is not None and found.image_is_unusable) == is_unusable
    if found is not None:
        assert found.failure.is_free


def sidecar_ended(message: str, *, is_ready: bool = False) -> Any:
    """A pod whose sidecar has ended with this message, and waits to be started again."""
    end = {"exitCode": 1, "reason": "Error", "message": message}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    sidecar = {
        "name": "holdfast-sidecar",
        "ready": is_ready,
        "state": {"running": {}} if is_ready else waiting,
        "lastState": {"terminated": end},
    }
    return pod_of(phase="Pending", initContainerStatuses=[sidecar])


@pytest.mark.parametrize(
    ("message", "fields", "is_lost"),
    [
        ('{"reason": "UnusableImage", "message": "the layer is damaged"}', {"restoredFrom": IMAGE}, True),
        ('{"reason": "UnusableImage", "message": "the layer is damaged"}', {}, False),
        ("the registry does not accept the credential", {"restoredFrom": IMAGE}, False),
    ],
)
def test_an_image_that_the_sidecar_can_bring_nothing_back_from_is_unusable(
    message: str, fields: dict[str, str], is_lost: bool
) -> None:
    found = lost(phase="Starting", replica=fields, pods=(sidecar_ended(message),), now=10)
    assert (found is not None) == is_lost
    if found is not None:
        assert found.image_is_unusable
        assert found.failure.is_free
        assert found.failure.message == "nothing can be resumed from the checkpoint image: the layer is damaged"


def test_a_sidecar_that_was_started_again_has_brought_the_checkpoint_back() -> None:
    again = sidecar_ended('{"reason": "UnusableImage", "message": "the layer is damaged"}', is_ready=True)
    assert lost(phase="Starting", replica={"restoredFrom": IMAGE}, pods=(again,), now=10) is None


def test_what_may_be_lost_by_time_alone_is_looked_at_then() -> None:
    observed = seen(replica(0), nodes=(silent(0),))
    assert list(lost_attempts_ahead(observed, observed.status, TIMING)) == [at(300)]
    starting = seen(replica(0, "Starting"), pods=(unscheduled(),))
    assert list(lost_attempts_ahead(starting, starting.status, TIMING)) == [at(120), at(300)]
