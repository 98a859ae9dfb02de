"""Which course is taken, given what is seen."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.api.core.objects import Job, JobSpec, Node, Pod
from holdfast.api.gpuworkload import GPUWorkload
from holdfast.decisions import CleanUp, Finish, StateReason, Wait
from holdfast.gpuworkload.decision import Action, AssignNode, RetryAttempt, RunJob, Suspend, decide, needs_node
from holdfast.gpuworkload.snapshot import TIMING, GPUWorkloadSnapshot
from holdfast.scheduling.messages import WaitMessage
from tests.gpuworkloads import (
    CHOSEN,
    NODE,
    RUNNING,
    SCHEDULED,
    failed,
    job,
    pending,
    pod,
    seen,
    workload,
)
from tests.trainingjobs import at, disrupted, node, stamp

OUT_OF_MEMORY = "(OOMKilled, exit code 137; raise resources.limits.memory)"
SUSPENDED = {"suspend": True}
BACKING_OFF = {"phase": "Pending", "jobName": "eval-job", "nextRetryTime": stamp(30), "message": "it failed; soon"}


def course(observed: GPUWorkloadSnapshot, seconds: float = 10) -> Action:
    return decide(observed, at(seconds), TIMING)


def lost(observed: GPUWorkloadSnapshot, seconds: float = 70) -> str:
    """Why the try is lost, free or counted."""
    found = course(observed, seconds)
    assert isinstance(found, RetryAttempt), found
    return f"{'free' if found.retry.failure.is_free else 'counted'}: {found.retry.failure.message}"


def tried(status: dict[str, Any] = RUNNING, spec: dict[str, Any] | None = None, **facts: Any) -> GPUWorkloadSnapshot:
    return seen(workload(spec, status), **{"job": job(), **facts})


def suspended() -> Job:
    return structs.replace(job(started=None), spec=JobSpec(suspend=True))


def cordoned() -> Node:
    there = node(NODE)
    return structs.replace(there, spec=structs.replace(there.spec, unschedulable=True))


class TestWaiting:
    def test_nothing_happens_before_the_first_placement_pass(self) -> None:
        assert course(seen(workload())) == Wait(None)

    @pytest.mark.parametrize(
        ("wait", "reason"),
        [(WaitMessage(message="needs 2"), "NoRoom"), (WaitMessage(message="needs 2", never=True), "NeverFits")],
    )
    def test_it_says_what_it_waits_for(self, wait: WaitMessage, reason: str) -> None:
        assert course(seen(workload(), wait=wait)) == Wait(StateReason("Pending", reason, "needs 2"))

    def test_it_takes_the_node_that_it_is_given(self) -> None:
        assert course(seen(workload(), offered_node="gpu-7")) == AssignNode("gpu-7")

    def test_a_suspended_one_takes_no_node(self) -> None:
        finding = StateReason("Pending", "Suspended", "spec.suspend is true; set it to false to go on")
        assert course(seen(workload(SUSPENDED), offered_node="gpu-7")) == Wait(finding)

    def test_one_that_backs_off_keeps_its_message(self) -> None:
        observed = seen(workload(status=BACKING_OFF), job=job("eval-job", "Failed"), offered_node="gpu-7")
        assert course(observed, 29) == Wait(StateReason("Pending", "BackingOff", "it failed; soon"))
        assert course(observed, 30) == AssignNode("gpu-7")

    def test_without_a_message_it_says_when(self) -> None:
        observed = seen(workload(status={**BACKING_OFF, "message": None}))
        assert course(observed) == Wait(StateReason("Pending", "BackingOff", f"next try at {stamp(30)}"))

    @pytest.mark.parametrize("seconds", [30 - TIMING.retry_cap_s - 1, -100_000])
    def test_a_clock_that_was_set_back_does_not_make_it_wait_longer_than_the_longest_wait(self, seconds: float) -> None:
        assert course(seen(workload(status=BACKING_OFF), offered_node="gpu-7"), seconds) == AssignNode("gpu-7")

    def test_its_pod_of_before_has_to_stop_first(self) -> None:
        observed = seen(
            workload(status={"phase": "Pending", "jobName": "eval-job"}), pods=(pod(),), offered_node="gpu-7"
        )
        message = f"waiting for its pod on {NODE} to stop before the next try"
        assert course(observed) == Wait(StateReason("Pending", "StoppingPod", message))

    @pytest.mark.parametrize(
        ("others", "nodes", "waits"),
        [
            (pod(), (node(NODE),), True),
            (pod("Pending", on=""), (), True),
            (pod("Failed"), (node(NODE),), False),
            (pod(deleted_at=40), (node(NODE),), True),
            (pod(deleted_at=40), (node(NODE, ready=False),), True),
            (pod(deleted_at=9 - TIMING.lost_pod_timeout_s), (node(NODE, ready=False),), False),
            (pod(), (node(NODE, ready=False),), True),
            (pod(deleted_at=40), (), False),
            (pod(), (), False),
        ],
    )
    def test_a_pod_that_may_still_run_holds_up_the_next_attempt(self, others: Any, nodes: Any, waits: bool) -> None:
        observed = seen(workload(), old_pods=(others,), nodes=nodes, offered_node="gpu-7")
        assert (course(observed) == AssignNode("gpu-7")) is not waits


class TestFollowing:
    @pytest.mark.parametrize("status", [CHOSEN, SCHEDULED, RUNNING])
    @pytest.mark.parametrize("pods", [(), (pod("Pending"),), (pod(),), (pod("Succeeded"),)])
    def test_an_attempt_goes_on(self, status: dict[str, Any], pods: Any) -> None:
        assert course(tried(status, pods=pods)) == RunJob()

    def test_its_job_is_made_when_a_node_is_chosen(self) -> None:
        assert course(tried(CHOSEN, job=None)) == RunJob()

    def test_it_ends_with_its_job(self) -> None:
        observed = tried(job=job("eval-job", "Complete"), pods=(pod("Succeeded"),))
        assert course(observed) == Finish(StateReason("Succeeded", "Completed", f"the workload succeeded on {NODE}"))

    def test_success_counts_even_if_the_node_is_gone_by_then_or_it_was_suspended(self) -> None:
        for spec in ({}, SUSPENDED):
            found = course(tried(spec=spec, job=job("eval-job", "Complete"), nodes=()))
            assert isinstance(found, Finish)

    def test_a_pod_that_has_succeeded_is_not_lost_with_its_node(self) -> None:
        assert course(tried(pods=(pod("Succeeded"),), nodes=())) == RunJob()

    def test_suspending_stops_it(self) -> None:
        assert course(tried(spec=SUSPENDED, pods=(pod(),))) == Suspend()
        assert course(tried(CHOSEN, spec=SUSPENDED, job=None)) == Suspend()

    def test_what_was_refused_fails(self) -> None:
        observed = tried(CHOSEN, job=None, rejected_reason="the Job is not valid")
        assert course(observed) == Finish(StateReason("Failed", "Refused", "the Job is not valid"))

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    def test_an_end_is_final(self, phase: str) -> None:
        for facts in ({}, {"job": None}, {"nodes": ()}, {"rejected_reason": "no"}, {"offered_node": "gpu-7"}):
            assert course(tried({**RUNNING, "phase": phase}, **facts)) == CleanUp()


class TestLosses:
    @pytest.mark.parametrize(
        ("name", "failure", "reason"),
        [
            ("eval-job", failed(128, "StartError", "exec: trian: not found"), "PermanentFailure"),
            ("eval-job", failed(2, message='{"reason": "PermanentFailure", "message": "no"}'), "PermanentFailure"),
            ("eval-job-1", failed(2, message='{"reason": "PermanentFailure", "message": "no"}'), "PermanentFailure"),
            ("eval-job-1", failed(128, "StartError", "exec: trian: not found"), None),
            ("eval-job", failed(2), None),
        ],
    )
    def test_a_failure_that_another_attempt_cannot_change_ends_the_workload_at_once(
        self, name: str, failure: Pod, reason: str | None
    ) -> None:
        found = course(tried({**RUNNING, "jobName": name}, job=job(name), pods=(failure,)))
        assert (found.finding.reason if isinstance(found, Finish) else None) == reason

    @pytest.mark.parametrize(
        ("observed", "why"),
        [
            (tried(pods=(failed(3),)), f"counted: its pod on {NODE} exited with code 3"),
            (
                tried(pods=(failed(137, "OOMKilled"),)),
                f"counted: its pod on {NODE} ran out of memory {OUT_OF_MEMORY}",
            ),
            (tried(pods=(failed(3, message="no data"),)), f"counted: its pod on {NODE} exited with code 3: no data"),
            (
                tried(pods=(disrupted(pod("Failed"), "EvictionByEvictionAPI"),)),
                f"free: its pod on {NODE} was taken away (EvictionByEvictionAPI)",
            ),
            (tried(pods=(pod(deleted_at=40),)), f"free: its pod on {NODE} was deleted from outside"),
            (
                tried(pods=(pod(deleted_at=40),), nodes=(node(NODE, ready=False),)),
                f"free: its pod on {NODE} was lost: its node is not ready",
            ),
            (tried(pods=(pod(),), nodes=()), f"free: node {NODE} is gone"),
            (tried(SCHEDULED, nodes=()), f"free: node {NODE} is gone"),
            (tried(CHOSEN, job=None, nodes=()), f"free: node {NODE} is gone"),
            (
                tried(SCHEDULED, nodes=(node(NODE, ready=False),), pending_s=TIMING.node_not_ready_s),
                f"free: node {NODE} was not ready any more when the pod was to start",
            ),
            (tried(SCHEDULED, job=None), "free: its Job was deleted from outside"),
            (tried(job=job(deleted=True), pods=(pod(),)), "free: its Job was deleted from outside"),
            (tried(job=job("eval-job", "Failed")), "free: its pod was deleted from outside"),
        ],
    )
    def test_an_attempt_is_lost_to(self, observed: GPUWorkloadSnapshot, why: str) -> None:
        assert lost(observed) == why

    @pytest.mark.parametrize(
        "observed",
        [
            tried(pods=(pod(),), nodes=(node(NODE, ready=False),)),
            tried(pods=(pod(),), nodes=(cordoned(),)),
            tried(SCHEDULED, nodes=(node(NODE, ready=False),), pending_s=TIMING.node_not_ready_s - 1),
            tried(SCHEDULED, nodes=(cordoned(),)),
            tried(pods=(pod(),), nodes=(node(NODE, taint="node.kubernetes.io/unreachable"),)),
            tried(job=job("eval-job", "FailureTarget"), pods=(pod(),)),
            tried(CHOSEN, job=job(deleted=True)),
        ],
        ids=[
            "silent node",
            "cordoned node",
            "node that was silent for a moment",
            "node that was cordoned meanwhile",
            "tainted node",
            "news of the Job before those of its pod",
            "a Job that goes before its time",
        ],
    )
    def test_this_alone_is_no_loss(self, observed: GPUWorkloadSnapshot) -> None:
        assert course(observed) == RunJob()

    @pytest.mark.parametrize(
        ("status", "facts", "why"),
        [
            ({**CHOSEN, "message": "exceeded quota"}, {"job": None}, ": exceeded quota"),
            (SCHEDULED, {}, ""),
            (SCHEDULED, {"job_problem": "exceeded quota"}, ": it is refused: exceeded quota"),
            (SCHEDULED, {"job": suspended()}, ": Job eval-job was suspended by somebody else"),
            (SCHEDULED, {"pods": (pending("0/4 nodes are available"),)}, ": 0/4 nodes are available"),
        ],
    )
    def test_a_pod_that_is_kept_from_its_node_is_placed_anew(
        self, status: dict[str, Any], facts: dict[str, Any], why: str
    ) -> None:
        assert course(tried(status, **facts, pending_s=TIMING.bind_timeout_s - 1)) == RunJob()
        told = lost(tried(status, **facts, pending_s=TIMING.bind_timeout_s))
        assert told == f"free: its pod did not get node {NODE} within 120 s{why}"

    @pytest.mark.parametrize(
        "facts",
        [{"job": job(started=None)}, {"pods": (pod("Pending", on=""),)}, {"pods": (pod("Pending"),)}],
        ids=["a Job that nobody has looked at", "a pod that nobody has looked at", "a pod that has its node"],
    )
    def test_it_may_take_its_time_where_another_node_would_not_help(self, facts: dict[str, Any]) -> None:
        assert course(tried(SCHEDULED, **facts, pending_s=100_000)) == RunJob()

    @pytest.mark.parametrize("seconds", [-100_000, 100_000])
    @pytest.mark.parametrize("pods", [(), (pending("0/4 nodes are available"),)])
    def test_a_clock_that_jumps_or_differs_from_that_of_its_job_loses_nothing(self, seconds: float, pods: Any) -> None:
        assert course(tried(SCHEDULED, pods=pods, pending_s=TIMING.bind_timeout_s - 1), seconds) == RunJob()

    @pytest.mark.parametrize(
        ("used", "allowed", "ends"), [(2, None, False), (3, None, True), (0, 0, True), (4, 5, False)]
    )
    def test_its_own_failures_use_up_the_retries(self, used: int, allowed: int | None, ends: bool) -> None:
        spec = {"retryPolicy": {"maxRetries": allowed}} if allowed is not None else {}
        found = course(tried({**RUNNING, "retryCount": used}, spec, pods=(failed(3),)))
        assert isinstance(found, Finish) is ends
        if isinstance(found, Finish):
            limit = 3 if allowed is None else allowed
            message = f"its pod on {NODE} exited with code 3 (after {used} of {limit} retries)"
            assert found.finding == StateReason("Failed", "RetriesExhausted", message)

    def test_what_is_nobodys_fault_is_free_even_without_retries(self) -> None:
        found = course(tried({**RUNNING, "retryCount": 9}, {"retryPolicy": {"maxRetries": 0}}, pods=(pod(),), nodes=()))
        assert isinstance(found, RetryAttempt)


@pytest.mark.parametrize(
    ("it", "facts", "wants"),
    [
        (workload(), {}, True),
        (workload(), {"offered_node": "gpu-7"}, True),
        (workload(SUSPENDED), {}, False),
        (workload(status=BACKING_OFF), {}, False),
        (workload(), {"rejected_reason": "no"}, False),
        (workload(), {"old_pods": (pod(),)}, False),
        (workload(status=RUNNING), {}, False),
        (workload(status={**RUNNING, "phase": "Failed"}), {}, False),
    ],
)
def test_which_workloads_are_queued(it: GPUWorkload, facts: dict[str, Any], wants: bool) -> None:
    assert needs_node(seen(it, **facts), at(10), TIMING) is wants
