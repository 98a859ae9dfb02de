"""What is made of the workers' reports and of their silence, look by look, on a clock of the test's own."""

from datetime import datetime
from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from holdfast.api.core.objects import Job, Pod
from holdfast.api.meta import Key
from holdfast.cluster.errors import Unreachable
from holdfast.cluster.resources import LEASES
from holdfast.trainingjob.decide.decision import decide, with_due_reports
from holdfast.trainingjob.decide.snapshot import TIMING, PendingReport, TrainingJobSnapshot
from holdfast.trainingjob.node_leases import NODE_LEASES, NodeLeases
from holdfast.trainingjob.node_probes import NodeProbes
from holdfast.trainingjob.node_witnesses import NodeWitnesses
from holdfast.trainingjob.reports.receiver import ReportReceiver
from holdfast.trainingjob.worker_monitor import AVOIDED_S, WorkerMonitor
from tests.runtime.scripted import ScriptedCluster
from tests.trainingjob.reports.reports import batch, checkpoint, ended
from tests.trainingjobs import at, deleted, failed, node, running, stamp, training_job, workers

JOB = Key("ml", "bert")
NODES = ("a", "b")


def pod(index: int, *, attempt: int = 0) -> Pod:
    made = running(index, node=NODES[index], attempt=attempt)
    return structs.replace(made, metadata=structs.replace(made.metadata, uid=f"pod-{attempt}-{index}"))


class MonitoredJob:
    """A job of two workers on two nodes, whose Leases are renewed as long as they live.

    Leases are only read, not watched, and no node can be asked.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cluster = ScriptedCluster()
        self.office = ReportReceiver(now=self.now, clock=lambda: 1000.0 + self.seconds)
        clock = self.office.clock
        leases, probes = NodeLeases(self.cluster, clock), NodeProbes(None, clock)
        self.listening = WorkerMonitor(self.office, NodeWitnesses(leases, probes, TIMING, clock), TIMING)
        self.speaking = {0, 1}
        self.living = set(NODES)
        self.spec: dict[str, Any] = {}
        self.attempt = 0
        for name in NODES:
            self.cluster.put(LEASES, {"metadata": {"name": name}}, namespace=NODE_LEASES)

    def now(self) -> datetime:
        return at(self.seconds)

    def observed(self, **more: Any) -> TrainingJobSnapshot:
        status = {"state": "Running", "restartCount": self.attempt}
        pods = tuple(pod(index, attempt=self.attempt) for index in (0, 1))
        seen = {"current_job": workers(), "pods": pods, "nodes": {name: node(name) for name in NODES}, **more}
        return TrainingJobSnapshot(job=training_job(self.spec, status=status), **seen)

    async def look(self, **more: Any) -> TrainingJobSnapshot:
        return await self.listening.with_liveness(self.observed(**more), self.now())

    async def pass_time(self, seconds: int) -> TrainingJobSnapshot:
        """Second by second; workers report and nodes renew every five, and it is looked when it is time."""
        seen, due = await self.look(), 0.0
        for _ in range(seconds):
            self.seconds += 1
            if self.seconds % 5 == 0:
                self.live()
            if self.seconds >= due:
                seen = await self.look()
                due = self.seconds + (self.listening.next_check_in_s(seen, self.now()) or 3600.0)
            if seen.liveness_failure is not None:
                break
        return seen

    def live(self) -> None:
        for index in self.speaking:
            self.office.inbox.put(JOB, batch(index=index, attempt=self.attempt))
        for name in self.living:
            self.cluster.put(LEASES, {"metadata": {"name": name}}, namespace=NODE_LEASES)

    def asked(self) -> set[str]:
        """Nodes whose Lease was read."""
        return {key.name for _, _, key in self.cluster.calls_of("get")}


@pytest.fixture
def monitored() -> MonitoredJob:
    monitored = MonitoredJob()
    monitored.live()
    return monitored


# Silence


async def test_while_all_report_no_lease_is_read(monitored: MonitoredJob) -> None:
    assert (await monitored.pass_time(120)).liveness_failure is None
    assert monitored.asked() == set()


async def test_a_worker_that_falls_silent_with_its_node_is_lost(monitored: MonitoredJob) -> None:
    monitored.speaking.discard(1)
    monitored.living.discard("b")
    seen = await monitored.pass_time(120)
    assert seen.liveness_failure is not None
    assert seen.liveness_failure.cause == "infrastructure"
    assert seen.liveness_failure.message.startswith("worker 1 on b was lost")
    assert seen.lost_pods == {"pod-0-1"}
    assert monitored.asked() == {"b"}
    # 15 s of silence and 20 s of looking every 4.
    assert 35 <= monitored.seconds <= 45


async def test_a_report_that_comes_while_a_lease_is_read_counts(monitored: MonitoredJob) -> None:
    monitored.speaking.discard(1)
    monitored.living.discard("b")
    assert (await monitored.pass_time(32)).liveness_failure is None

    def read_slowly() -> None:
        monitored.seconds += 7
        monitored.office.inbox.put(JOB, batch(index=1))

    monitored.cluster.reading = read_slowly
    assert (await monitored.look()).liveness_failure is None


async def test_a_silent_worker_on_a_living_node_is_left_alone_and_the_log_says_why_once(
    monitored: MonitoredJob,
) -> None:
    monitored.speaking.discard(1)
    with capture_logs() as logs:
        assert (await monitored.pass_time(300)).liveness_failure is None
    assert monitored.asked() == {"b"}
    told = [(line["node"], line["reason"]) for line in logs if "not given up" in line["event"]]
    assert told[-1] == ("b", "its node has renewed its Lease since its last report")
    assert len(told) <= 2


async def test_the_log_says_it_again_when_the_worker_was_heard_in_between(monitored: MonitoredJob) -> None:
    with capture_logs() as logs:
        for _ in range(2):
            monitored.speaking.discard(1)
            await monitored.pass_time(60)
            monitored.speaking.add(1)
            await monitored.pass_time(30)
    told = [line["reason"] for line in logs if "not given up" in line["event"]]
    assert told.count("its node has renewed its Lease since its last report") == 2


async def test_nodes_that_are_lost_together_are_given_up_together(monitored: MonitoredJob) -> None:
    monitored.seconds = 4.0
    monitored.office.inbox.put(JOB, batch(index=1))
    monitored.speaking.clear()
    monitored.living.clear()
    seen = await monitored.pass_time(120)
    assert seen.lost_pods == {"pod-0-0", "pod-0-1"}
    monitored.attempt = 1
    assert monitored.listening.nodes_to_avoid(monitored.observed().job) == NODES


async def test_a_worker_of_before_that_stays_with_a_dead_node_holds_up_nobody(monitored: MonitoredJob) -> None:
    monitored.attempt = 1
    late = {"pods": (), "current_job": None, "old_pods": (deleted(pod(1), asked=0, grace_s=5),)}
    monitored.living.discard("b")
    for monitored.seconds in range(8, 28, 4):
        assert (await monitored.look(**late)).lost_pods == set()
    monitored.seconds = 28
    assert (await monitored.look(**late)).lost_pods == {"pod-0-1"}
    assert monitored.listening.nodes_to_avoid(monitored.observed().job) == ("b",)


async def test_a_worker_of_before_that_stays_on_a_living_node_is_waited_for(monitored: MonitoredJob) -> None:
    monitored.attempt = 1
    late = {"pods": (), "current_job": None, "old_pods": (deleted(pod(1), asked=0, grace_s=5),)}
    for monitored.seconds in range(8, 120, 4):
        monitored.live()
        assert (await monitored.look(**late)).lost_pods == set()
    assert monitored.listening.next_check_in_s(monitored.observed(**late), monitored.now()) == 4.0


async def test_the_class_is_that_of_the_node(monitored: MonitoredJob) -> None:
    monitored.speaking.clear()
    monitored.living.clear()
    await monitored.pass_time(30)
    monitored.seconds += 6
    await monitored.look()
    spot = {name: node(name, labels={"cloud.google.com/gke-spot": "true"}) for name in NODES}
    for _ in range(8):
        monitored.seconds += 4
        seen = await monitored.look(nodes=spot)
    assert seen.liveness_failure is not None
    assert seen.liveness_failure.cause == "preemption"


async def test_a_lease_that_can_not_be_read_proves_nothing(monitored: MonitoredJob) -> None:
    monitored.speaking.clear()
    monitored.living.clear()
    monitored.cluster.errors["get"] = [Unreachable("no")] * 1000
    assert (await monitored.pass_time(300)).liveness_failure is None
    monitored.cluster.errors["get"].clear()
    assert (await monitored.pass_time(60)).liveness_failure is not None


async def test_how_a_node_was_long_ago_proves_nothing_when_its_lease_can_not_be_read(monitored: MonitoredJob) -> None:
    await lost(monitored)
    monitored.listening.forget(JOB)
    monitored.speaking, monitored.living = {0, 1}, set(NODES)
    monitored.live()
    assert (await monitored.pass_time(60)).liveness_failure is None
    monitored.speaking.discard(1)
    monitored.cluster.errors["get"] = [Unreachable("no")] * 1000
    assert (await monitored.pass_time(60)).liveness_failure is None


async def test_an_operator_that_could_not_hear_misses_nobody(monitored: MonitoredJob) -> None:
    monitored.speaking.clear()
    monitored.living.clear()
    for _ in range(20):
        monitored.office.uptime.reset()
        assert (await monitored.pass_time(10)).liveness_failure is None
    assert monitored.asked() == set()


async def test_an_operator_that_has_just_started_misses_nobody() -> None:
    monitored = MonitoredJob()
    monitored.speaking.clear()
    monitored.living.clear()
    assert (await monitored.pass_time(300)).liveness_failure is None
    assert monitored.asked() == set()


@pytest.mark.parametrize("more", [{"current_job": workers(suspend=True)}, {"current_job": None, "pods": ()}])
async def test_nobody_is_missed_where_nothing_would_follow(monitored: MonitoredJob, more: dict[str, Any]) -> None:
    monitored.speaking.clear()
    monitored.living.clear()
    for _ in range(60):
        monitored.seconds += 4
        assert (await monitored.look(**more)).liveness_failure is None


@pytest.mark.parametrize(
    ("silent", "fewest", "is_lost"),
    [(1, 1, False), (1, 2, True), (0, 1, True)],
    ids=["enough-are-left", "too-few-are-left", "worker-0-where-they-meet"],
)
async def test_an_elastic_training_is_broken_by_the_silence_of_those_it_needs(
    monitored: MonitoredJob, silent: int, fewest: int, is_lost: bool
) -> None:
    for _ in range(60):
        monitored.seconds += 4
        monitored.office.inbox.put(JOB, batch(index=1 - silent))
        seen = await monitored.look(min_workers=fewest)
    assert (seen.liveness_failure is not None) == is_lost
    assert seen.lost_pods == ({f"pod-0-{silent}"} if is_lost else set())


# Nodes that were lost


async def lost(monitored: MonitoredJob) -> None:
    monitored.speaking.discard(1)
    monitored.living.discard("b")
    assert (await monitored.pass_time(120)).liveness_failure is not None


def made_to_avoid(*nodes: str, suspend: bool = True) -> Job:
    job = workers(suspend=suspend)
    annotations = {"holdfast.dev/avoids": ",".join(nodes)} if nodes else {}
    return structs.replace(job, metadata=structs.replace(job.metadata, annotations=annotations))


async def test_a_lost_node_is_avoided_by_later_attempts_for_a_while(monitored: MonitoredJob) -> None:
    await lost(monitored)
    assert monitored.listening.nodes_to_avoid(monitored.observed().job) == ()
    monitored.attempt = 1
    assert monitored.listening.nodes_to_avoid(monitored.observed().job) == ("b",)
    look_s = monitored.listening.next_check_in_s(monitored.observed(current_job=None, pods=()), monitored.now())
    assert look_s is not None
    monitored.seconds += look_s
    assert look_s == AVOIDED_S
    assert monitored.listening.nodes_to_avoid(monitored.observed().job) == ()


@pytest.mark.parametrize(
    ("avoids", "started", "misplaced"),
    [(("b",), False, False), ((), False, True), (("a", "b"), False, True), ((), True, False)],
)
async def test_an_attempt_made_to_avoid_other_nodes_is_misplaced_until_it_starts(
    monitored: MonitoredJob, avoids: tuple[str, ...], started: bool, misplaced: bool
) -> None:
    await lost(monitored)
    monitored.attempt = 1
    seen = await monitored.look(current_job=made_to_avoid(*avoids, suspend=not started), pods=())
    assert seen.avoids_wrong_nodes == misplaced


async def test_a_job_that_is_suspended_is_not_made_anew_for_that(monitored: MonitoredJob) -> None:
    await lost(monitored)
    monitored.attempt, monitored.spec = 1, {"suspend": True}
    assert not (await monitored.look(current_job=made_to_avoid(), pods=())).avoids_wrong_nodes


async def test_what_was_given_up_stays_so_in_the_next_attempt_and_is_forgotten_with_the_job(
    monitored: MonitoredJob,
) -> None:
    await lost(monitored)
    monitored.attempt = 1
    assert (await monitored.look(current_job=None, pods=())).lost_pods == {"pod-0-1"}
    monitored.listening.forget(JOB)
    assert (await monitored.look(current_job=None, pods=())).lost_pods == frozenset()
    assert monitored.listening.nodes_to_avoid(monitored.observed().job) == ()


# Workers that are told to go


@pytest.mark.parametrize(
    ("heeds", "is_ready", "after_s", "is_saving"),
    [(True, True, 59, True), (True, True, 60, False), (True, False, 1, False), (False, True, 1, False)],
    ids=["saving", "too-late", "out-of-reach", "does-not-listen"],
)
async def test_a_worker_that_is_told_to_go_may_save_first(
    monitored: MonitoredJob, heeds: bool, is_ready: bool, after_s: int, is_saving: bool
) -> None:
    monitored.office.inbox.put(JOB, batch(saves_on_notice=heeds))
    going, nodes = deleted(pod(1), asked=0), {"a": node("a"), "b": node("b", ready=is_ready)}
    monitored.seconds = after_s
    seen = await monitored.look(pods=(pod(0), going), nodes=nodes)
    assert seen.saving_pods == ({"pod-0-1"} if is_saving else set())
    assert (monitored.listening.next_check_in_s(seen, monitored.now()) == 60 - after_s) == is_saving


# Hangs


async def test_a_hang_is_found_soon_after_its_time(monitored: MonitoredJob) -> None:
    monitored.spec = {"progressDeadlineSeconds": 60}
    monitored.office.inbox.put(JOB, batch(ended(1)))
    seen = await monitored.pass_time(300)
    assert seen.liveness_failure is not None
    assert seen.liveness_failure.cause == "hang"
    assert 60 <= monitored.seconds <= 70


async def test_workers_that_are_not_heard_do_not_hang(monitored: MonitoredJob) -> None:
    monitored.spec = {"progressDeadlineSeconds": 60}
    monitored.speaking.clear()
    assert (await monitored.pass_time(300)).liveness_failure is None


# Letters


def due_reports(listening: WorkerMonitor, observed: TrainingJobSnapshot, now: datetime) -> tuple[PendingReport, ...]:
    """Those that the status of this reconcile takes."""
    told = listening.with_reports(observed, now)
    return with_due_reports(told, decide(told, now, TIMING)).reports


def test_reports_wait_for_their_time_and_for_nothing_else(monitored: MonitoredJob) -> None:
    inbox, listening = monitored.office.inbox, monitored.listening
    inbox.put(JOB, batch(ended(1)))
    first = due_reports(listening, monitored.observed(), monitored.now())
    assert [letter.batch for letter in first] == [batch(ended(1))]
    listening.acknowledge(JOB, first)
    for second in range(1, 5):
        monitored.seconds = second
        inbox.put(JOB, batch(ended(1 + second)))
        taken = due_reports(listening, monitored.observed(), monitored.now())
        assert taken == ()
        listening.acknowledge(JOB, taken)
    monitored.seconds = 5
    assert len(due_reports(listening, monitored.observed(), monitored.now())) == 4


@pytest.mark.parametrize(
    "more",
    [
        {"current_job": workers(conditions={"Complete": "CompletionsReached"})},
        {"pods": (pod(0), failed(1, 7, at=stamp(1)))},
        {"current_job": None, "pods": ()},
        {"rejected_reason": "no"},
        {"spec_changed": True},
    ],
    ids=["complete", "failed", "deleted", "refused", "changed"],
)
def test_reports_are_read_before_an_attempt_ends(monitored: MonitoredJob, more: dict[str, Any]) -> None:
    inbox, listening = monitored.office.inbox, monitored.listening
    inbox.put(JOB, batch(ended(1)))
    listening.acknowledge(JOB, inbox.pending(JOB))
    inbox.put(JOB, batch(ended(2)))
    assert due_reports(listening, monitored.observed(), monitored.now()) == ()
    job = training_job(status={"state": "Running", "startTime": stamp(0)})
    ending = structs.replace(monitored.observed(**more), job=job)
    assert len(due_reports(listening, ending, monitored.now())) == 1


def test_a_worker_that_has_finished_before_the_others_does_not_hurry_the_writes(monitored: MonitoredJob) -> None:
    inbox, listening = monitored.office.inbox, monitored.listening
    inbox.put(JOB, batch(ended(1)))
    listening.acknowledge(JOB, inbox.pending(JOB))
    inbox.put(JOB, batch(ended(2)))
    done = structs.replace(pod(1), status=structs.replace(pod(1).status, phase="Succeeded"))
    assert due_reports(listening, monitored.observed(pods=(pod(0), done)), monitored.now()) == ()


def test_what_is_read_is_of_this_job_and_this_attempt(monitored: MonitoredJob) -> None:
    inbox, listening = monitored.office.inbox, monitored.listening
    for report in (batch(ended(9), uid="of its predecessor"), batch(ended(2)), batch(checkpoints=(checkpoint(2),))):
        inbox.put(JOB, report)
    inbox.put(JOB, batch(ended(7), attempt=3))
    status = listening.fold_reports(monitored.observed(), inbox.pending(JOB), monitored.now())
    assert status.current_epoch == 2
    assert status.checkpoint is not None
    assert status.checkpoint.last_epoch == 2


def test_the_gpu_utilization_is_written_with_progress_and_never_alone(monitored: MonitoredJob) -> None:
    inbox, listening, seen = monitored.office.inbox, monitored.listening, monitored.observed()
    inbox.put(JOB, batch(gpu_utilization_percent=30.0))
    inbox.put(JOB, batch(index=1, gpu_utilization_percent=80.0))
    assert listening.gpu_utilization_percent(seen.job) == 55.0
    assert inbox.pending(JOB) == ()
    assert listening.fold_reports(seen, (), monitored.now()) == seen.status
    inbox.put(JOB, batch(ended(1, gpu_utilization_percent=30.0), gpu_utilization_percent=30.0))
    status = listening.fold_reports(seen, inbox.pending(JOB), monitored.now())
    assert status.metrics == {"gpu_utilization_percent": 55.0}
    monitored.attempt = 1
    assert listening.gpu_utilization_percent(monitored.observed().job) is None
    monitored.attempt, monitored.seconds = 0, TIMING.report_timeout_s
    assert listening.gpu_utilization_percent(seen.job) is None
