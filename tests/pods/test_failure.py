"""Which worker was lost first, and to what: pods, their nodes and their Job → a class of failure and a sentence."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.core.objects import Node, Pod
from holdfast.pods.failure import PREEMPTION_TAINTS, SPOT, WorkerFailure
from holdfast.trainingjob.decide.failure import find_failure
from holdfast.trainingjob.decide.snapshot import TrainingJobSnapshot
from tests.pods.failures import ENDING, READY, SILENT, lost, thrown_out
from tests.trainingjobs import deleted, disrupted, failed, node, running, stamp, training_job, worker, workers


def taken(reason: str, message: str = "") -> Pod:
    return disrupted(deleted(running(0), asked=60), reason, message)


@pytest.mark.parametrize(
    ("pod", "cause", "said"),
    [
        (
            taken("PreemptionByScheduler", "preempting for a higher priority pod"),
            "preemption",
            "worker 0 on gpu-3 was preempted (PreemptionByScheduler: preempting for a higher priority pod)",
        ),
        (thrown_out("Preempting"), "preemption", "worker 0 on gpu-3 was preempted (Preempting)"),
        (
            taken("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"),
            "infrastructure",
            "worker 0 on gpu-3 was taken away (DeletionByTaintManager: Taint manager: deleting due to NoExecute taint)",
        ),
        (taken("EvictionByEvictionAPI"), "infrastructure", "worker 0 on gpu-3 was taken away (EvictionByEvictionAPI)"),
        (taken("DeletionByPodGC"), "infrastructure", "worker 0 on gpu-3 was taken away (DeletionByPodGC)"),
        (
            disrupted(failed(0, 137, at=stamp(60)), "TerminationByKubelet", "The node was low on resource: memory."),
            "infrastructure",
            "worker 0 on gpu-3 was taken away (TerminationByKubelet: The node was low on resource: memory.)",
        ),
        (
            thrown_out("Evicted", "The node was low on resource: ephemeral-storage."),
            "infrastructure",
            "worker 0 on gpu-3 was taken away (Evicted: The node was low on resource: ephemeral-storage.)",
        ),
        (thrown_out("NodeShutdown"), "infrastructure", "worker 0 on gpu-3 was taken away (NodeShutdown)"),
        (thrown_out("Terminated"), "infrastructure", "worker 0 on gpu-3 was taken away (Terminated)"),
        (thrown_out("NodeLost"), "infrastructure", "worker 0 on gpu-3 was taken away (NodeLost)"),
        (thrown_out("NodeAffinity"), "infrastructure", "worker 0 on gpu-3 was taken away (NodeAffinity)"),
        (
            thrown_out("OutOfnvidia.com/gpu", "Node didn't have enough resource: nvidia.com/gpu"),
            "infrastructure",
            "worker 0 on gpu-3 was taken away (OutOfnvidia.com/gpu: Node didn't have enough resource: nvidia.com/gpu)",
        ),
        (
            thrown_out("UnexpectedAdmissionError", "Allocate failed due to no healthy devices"),
            "infrastructure",
            "worker 0 on gpu-3 was taken away (UnexpectedAdmissionError: Allocate failed due to no healthy devices)",
        ),
        (
            thrown_out("TopologyAffinityError"),
            "infrastructure",
            "worker 0 on gpu-3 was taken away (TopologyAffinityError)",
        ),
        # What the kubelet writes for a container that it finds no trace of, and containerd after a reboot.
        (
            failed(0, 137, at=stamp(60), reason="ContainerStatusUnknown"),
            "infrastructure",
            "worker 0 on gpu-3 exited with code 137 (ContainerStatusUnknown): nobody saw how it ended",
        ),
        (
            failed(0, 255, at=stamp(60), reason="Unknown"),
            "infrastructure",
            "worker 0 on gpu-3 exited with code 255 (Unknown): nobody saw how it ended",
        ),
        (
            failed(0, 137, at=stamp(60), reason="OOMKilled"),
            "outOfMemory",
            "worker 0 on gpu-3 ran out of memory (OOMKilled, exit code 137; raise resources.limits.memory)",
        ),
        (
            failed(0, 1, at=stamp(60), message="Traceback:\nValueError: no such layer\n"),
            "application",
            "worker 0 on gpu-3 exited with code 1: Traceback:\nValueError: no such layer",
        ),
        (failed(0, 137, at=stamp(60)), "application", "worker 0 on gpu-3 was killed (SIGKILL)"),
        (
            failed(0, 128, at=stamp(60), reason="StartError", message="exec: trian: not found"),
            "application",
            "worker 0 on gpu-3 exited with code 128 (StartError): exec: trian: not found",
        ),
        (thrown_out(""), "application", "worker 0 on gpu-3 failed: without a word"),
        (
            thrown_out("SysctlForbidden", "forbidden sysctl"),
            "application",
            "worker 0 on gpu-3 failed: forbidden sysctl",
        ),
    ],
)
def test_what_the_cluster_says_of_a_pod_decides_the_class(pod: Pod, cause: str, said: str) -> None:
    loss = lost(pod, running(1))
    assert loss is not None
    assert (loss.cause, loss.message) == (cause, said)


@pytest.mark.parametrize(
    ("pod", "stopped"),
    [
        (thrown_out("Terminated"), True),
        (disrupted(thrown_out("Terminated"), "TerminationByKubelet"), True),
        (thrown_out("NodeLost"), True),
        (thrown_out("NodeShutdown"), True),
        (thrown_out("Evicted"), False),
        (disrupted(thrown_out("Evicted"), "TerminationByKubelet"), False),
        (thrown_out("OutOfcpu"), False),
    ],
)
def test_a_node_that_was_shut_down_is_distinguished_from_one_that_threw_its_pod_out(pod: Pod, stopped: bool) -> None:
    loss = lost(pod)
    assert loss is not None
    assert (loss.cause, loss.node_stopped) == ("infrastructure", stopped)


@pytest.mark.parametrize(
    ("pod", "code"),
    [
        (failed(0, 3, at=stamp(60)), 3),
        (failed(0, 137, at=stamp(60), reason="OOMKilled"), 137),
        (thrown_out("Evicted"), None),
        (thrown_out(""), None),
    ],
)
def test_only_the_trainings_own_end_has_an_exit_code(pod: Pod, code: int | None) -> None:
    loss = lost(pod)
    assert loss is not None
    assert loss.exit_code == code


@pytest.mark.parametrize("machine", [node(labels={label: value}) for label, value in SPOT.items()])
def test_a_worker_that_is_taken_from_a_spot_machine_was_preempted(machine: Node) -> None:
    loss = lost(taken("DeletionByTaintManager"), nodes=[machine])
    assert loss is not None
    assert (loss.cause, loss.is_free) == ("preemption", True)


@pytest.mark.parametrize("mark", PREEMPTION_TAINTS)
def test_a_worker_that_is_taken_from_a_machine_with_a_notice_was_preempted(mark: str) -> None:
    loss = lost(thrown_out("NodeShutdown"), nodes=[node(taint=mark)])
    assert loss is not None
    assert loss.cause == "preemption"


@pytest.mark.parametrize(
    "machine",
    [
        node(labels={"karpenter.sh/capacity-type": "on-demand"}),
        node(labels={"cloud.google.com/gke-spot": "false"}),
        node(taint="nvidia.com/gpu"),
    ],
)
def test_other_labels_and_taints_of_a_machine_mean_nothing(machine: Node) -> None:
    loss = lost(taken("EvictionByEvictionAPI"), nodes=[machine])
    assert loss is not None
    assert loss.cause == "infrastructure"


@pytest.mark.parametrize(
    ("nodes", "cause", "said"),
    [
        ([], "infrastructure", "worker 0 on gpu-3 was lost: its node is gone"),
        ([SILENT], "infrastructure", "worker 0 on gpu-3 was lost: its node is not ready"),
        (
            [node(ready=False, labels={"karpenter.sh/capacity-type": "spot"})],
            "preemption",
            "worker 0 on gpu-3 was lost: its node is not ready",
        ),
    ],
)
def test_a_worker_that_goes_when_its_node_does_is_lost_with_it(nodes: list[Node], cause: str, said: str) -> None:
    for pod in (deleted(running(0), asked=60), failed(0, 143, at=stamp(60))):
        loss = lost(pod, nodes=nodes)
        assert loss is not None
        assert (loss.cause, loss.message) == (cause, said)


def test_a_crash_on_a_spot_machine_that_stays_is_the_trainings_own() -> None:
    loss = lost(failed(0, 1, at=stamp(60)), nodes=[node(labels={"karpenter.sh/capacity-type": "spot"})])
    assert loss is not None
    assert loss.cause == "application"


@pytest.mark.parametrize(
    "pod",
    [
        running(0),
        worker(0, {"phase": "Pending"}),
        worker(0, {"phase": "Unknown"}, node="gpu-3"),
        worker(0, {"phase": "Succeeded"}, node="gone"),
        deleted(worker(0, {"phase": "Succeeded"}, node="gone"), asked=60),
        # The scheduler means to preempt it and has not yet.
        disrupted(running(0), "PreemptionByScheduler"),
    ],
)
def test_a_worker_that_runs_waits_or_has_succeeded_is_not_lost(pod: Pod) -> None:
    assert lost(pod, running(1), nodes=[]) is None


def test_a_running_worker_on_a_silent_node_is_not_given_up_before_kubernetes_does() -> None:
    assert lost(running(0), running(1), nodes=[SILENT]) is None


def test_a_crash_while_another_workers_node_is_silent_is_blamed_on_the_node() -> None:
    silent = running(0, node="gone")
    found = lost(silent, failed(1, 1, at=stamp(60)))
    assert found is not None
    assert (found.cause, found.message) == ("infrastructure", "worker 0 on gone was lost: its node is gone")


def test_a_worker_deleted_by_hand_costs_nothing_even_if_it_then_ends_with_an_error() -> None:
    ended = [deleted(failed(0, 143, at=stamp(when)), asked=60) for when in (60, 61)]
    for pod in (deleted(running(0), asked=60), *ended):
        loss = lost(pod, running(1))
        assert loss is not None
        assert (loss.cause, loss.message) == ("infrastructure", "worker 0 on gpu-3 was deleted from outside")


@pytest.mark.parametrize("exit_code", [143, 137])
def test_a_worker_whose_kubelet_has_deleted_it_for_good_was_deleted_before(exit_code: int) -> None:
    """The last deletion is without grace, and the API server moves deletionTimestamp to that moment."""
    loss = lost(deleted(failed(0, exit_code, at=stamp(60)), asked=62, grace_s=0), running(1))
    assert loss is not None
    assert (loss.cause, loss.message) == ("infrastructure", "worker 0 on gpu-3 was deleted from outside")


@pytest.mark.parametrize(
    ("exit_code", "reason", "cause"), [(1, "Error", "application"), (137, "OOMKilled", "outOfMemory")]
)
def test_a_worker_deleted_after_it_failed_is_charged_all_the_same(exit_code: int, reason: str, cause: str) -> None:
    loss = lost(deleted(failed(0, exit_code, at=stamp(60), reason=reason), asked=90, grace_s=0), running(1))
    assert loss is not None
    assert (loss.cause, loss.exit_code) == (cause, exit_code)


@pytest.mark.parametrize("conditions", [{}, ENDING, {"Failed": "BackoffLimitExceeded"}])
def test_those_that_the_job_controller_ends_because_of_another_are_not_blamed(conditions: dict[str, str]) -> None:
    """Whether it has said so yet or not: its word and its deletions come by different ways."""
    collateral = [deleted(running(0), asked=60), deleted(failed(2, 143, at=stamp(62)), asked=61)]
    loss = lost(*collateral, failed(1, 7, at=stamp(60)), job=workers(conditions=conditions))
    assert loss is not None
    assert (loss.cause, loss.message) == ("application", "worker 1 on gpu-3 exited with code 7")


@pytest.mark.parametrize("conditions", [{}, ENDING])
def test_a_crash_that_follows_a_deletion_by_hand_is_not_charged(conditions: dict[str, str]) -> None:
    pods = (deleted(running(0), asked=60), failed(1, 1, at=stamp(65), message="connection lost"))
    loss = lost(*pods, job=workers(conditions=conditions))
    assert loss is not None
    assert loss.message == "worker 0 on gpu-3 was deleted from outside"


def test_a_job_that_failed_without_a_worker_to_show_for_it_lost_one_that_was_deleted() -> None:
    for conditions in (ENDING, {"Failed": "BackoffLimitExceeded"}):
        loss = lost(deleted(running(1), asked=60), job=workers(conditions=conditions))
        assert loss == WorkerFailure(cause="infrastructure", message="a worker was deleted from outside")


CRASH = failed(0, 1, at=stamp(60))
LATER_CRASH = failed(1, 2, at=stamp(61))
OUT_OF_MEMORY = failed(2, 137, at=stamp(62), reason="OOMKilled")
EVICTED = disrupted(failed(3, 137, at=stamp(63)), "TerminationByKubelet")
BY_HAND = deleted(running(4), asked=50)
PREEMPTED_ONE = disrupted(deleted(failed(5, 143, at=stamp(64)), asked=59), "PreemptionByScheduler")


@pytest.mark.parametrize(
    ("pods", "blamed"),
    [
        ([CRASH, LATER_CRASH], "worker 0 "),
        ([failed(0, 1, at=stamp(61)), failed(1, 1, at=stamp(60))], "worker 1 "),
        ([LATER_CRASH, OUT_OF_MEMORY], "worker 2 "),
        ([CRASH, OUT_OF_MEMORY, EVICTED], "worker 3 "),
        ([CRASH, OUT_OF_MEMORY, BY_HAND], "worker 4 "),
        ([BY_HAND, EVICTED], "worker 3 "),
        ([CRASH, LATER_CRASH, OUT_OF_MEMORY, EVICTED, BY_HAND, PREEMPTED_ONE], "worker 5 "),
        # In one second the first by number.
        ([failed(1, 1, at=stamp(60)), failed(0, 1, at=stamp(60))], "worker 0 "),
        ([thrown_out("OutOfcpu"), deleted(running(1), asked=60)], "worker 0 "),
    ],
)
def test_of_several_the_one_that_explains_the_others_is_blamed(pods: list[Pod], blamed: str) -> None:
    for order in (pods, pods[::-1]):
        loss = lost(*order)
        assert loss is not None
        assert loss.message.startswith(blamed)


@given(st.permutations([CRASH, LATER_CRASH, OUT_OF_MEMORY, EVICTED, BY_HAND, PREEMPTED_ONE]), st.integers(1, 6))
def test_the_order_of_the_pods_never_matters(pods: list[Pod], count: int) -> None:
    seen = pods[:count]
    assert lost(*seen) == lost(*reversed(seen))


@pytest.mark.parametrize(
    ("state", "spec", "is_lost"),
    [
        ("Running", {}, True),
        ("Initializing", {}, True),
        ("Pending", {}, False),
        ("Restarting", {}, False),
        ("Suspended", {}, False),
        # Nothing should run then, whoever deleted it.
        ("Running", {"suspend": True}, False),
    ],
)
def test_a_job_that_vanished_is_lost_only_if_it_was_under_way(state: str, spec: dict[str, Any], is_lost: bool) -> None:
    job = training_job(spec, status={"state": state})
    for there in (None, deleted(workers(), asked=60, grace_s=0)):
        loss = find_failure(
            TrainingJobSnapshot(job=job, current_job=there, pods=(deleted(running(0), asked=60),) if there else ())
        )
        assert (loss is not None) == is_lost
        if loss is not None:
            assert (loss.cause, loss.message) == ("infrastructure", "the workers' Job was deleted from outside")


def test_a_suspended_or_complete_job_has_lost_nobody() -> None:
    stopping = (deleted(running(0), asked=60), failed(1, 143, at=stamp(61)))
    assert lost(*stopping, job=workers(suspend=True)) is None
    assert lost(*stopping, job=workers(conditions={"Complete": "CompletionsReached"})) is None


def test_workers_stopped_by_a_suspension_are_not_lost_when_the_job_goes_on() -> None:
    """Their pods may still be there for a moment after the Job was told to go on, and after it has."""
    stopped = (deleted(failed(0, 143, at=stamp(62)), asked=60), deleted(running(1), asked=60))
    told = workers(conditions={"Suspended": "JobSuspended"})
    resumed = workers(status={"startTime": stamp(63)})
    assert lost(*stopped, job=told) is None
    assert lost(*stopped, job=resumed) is None
    removed = deleted(failed(0, 143, at=stamp(62)), asked=65, grace_s=0)
    assert lost(removed, job=resumed) is None


def test_a_worker_lost_after_the_job_went_on_is_lost() -> None:
    resumed = workers(status={"startTime": stamp(63)})
    in_the_same_second = deleted(running(0), asked=0)  # made at 0 as well
    for pod, job in ((deleted(running(0), asked=64), resumed), (in_the_same_second, workers())):
        loss = lost(pod, job=job)
        assert loss is not None
        assert loss.message == "worker 0 on gpu-3 was deleted from outside"


def test_a_worker_that_failed_by_itself_during_the_suspension_is_found_afterwards() -> None:
    loss = lost(failed(0, 9, at=stamp(60)), job=workers(conditions={"Suspended": "JobSuspended", **ENDING}))
    assert loss is not None
    assert loss.exit_code == 9


def test_an_end_without_a_time_does_not_hide_the_failure() -> None:
    loss = lost(failed(0, 1, at=""), deleted(running(1), asked=60))
    assert loss is not None
    assert loss.cause == "application"


def test_the_worker_that_failed_first_is_the_cause_even_while_its_sidecar_still_keeps_a_checkpoint() -> None:
    ended_first = failed(0, 137, at=stamp(10))
    uploading = structs.replace(ended_first, status=structs.replace(ended_first.status, phase="Running"))
    victim = failed(1, 1, at=stamp(11), message="lost worker 0: connection reset by peer")
    loss = lost(uploading, victim)
    assert loss is not None
    assert loss.message == "worker 0 on gpu-3 was killed (SIGKILL)"
    assert lost(uploading, running(1)) is None  # nothing is stopped before its checkpoint is kept


def test_a_container_whose_end_nobody_has_seen_has_no_time() -> None:
    """So a kubelet tells it, with null for both times, when its machine was started anew."""
    end = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "", "startedAt": None, "finishedAt": None}
    pod = worker(0, {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": {"terminated": end}}]})
    loss = lost(pod, running(1))
    assert loss is not None
    assert loss.cause == "infrastructure"


def test_a_worker_that_is_deleted_and_saves_first_has_not_failed_yet() -> None:
    leaving = deleted(running(0), asked=10)
    leaving = structs.replace(leaving, metadata=structs.replace(leaving.metadata, uid="saves"))
    observed = TrainingJobSnapshot(
        job=training_job(status={"state": "Running"}),
        current_job=workers(),
        pods=(leaving, running(1)),
        nodes={"gpu-3": READY},
    )
    assert find_failure(observed) is not None
    saving = structs.replace(observed, saving_pods=frozenset({"saves"}))
    assert find_failure(saving) is None
    # Once another has failed nobody can save any more.
    assert find_failure(structs.replace(saving, pods=(leaving, failed(1, 1, at=stamp(11))))) is not None
