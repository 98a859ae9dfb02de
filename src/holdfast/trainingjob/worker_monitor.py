"""Applies the workers' reports to the status, and detects failures from missing reports."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec import Struct, structs

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.pods.failure import WorkerFailure, deletion_requested_at, failure_class_of_node, index_of
from holdfast.trainingjob.decide.liveness import (
    HANG_CHECK_EVERY_S,
    AttemptReports,
    can_continue_without,
    find_hang,
    gpu_utilization_percent,
    hang_due_s,
    next_overdue,
    overdue,
)
from holdfast.trainingjob.decide.node_death import (
    FOLLOWING_FRACTION,
    WorkerNode,
    doubt_after_s,
    node_failure,
    overdue_nodes,
    worker_nodes,
)
from holdfast.trainingjob.decide.progress import apply_report, termination_report, with_gpu_utilization
from holdfast.trainingjob.decide.snapshot import PendingReport, TrainingJobSnapshot, TrainingJobTiming
from holdfast.trainingjob.node_witnesses import NodeWitnesses
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.job import AVOIDS, avoided_nodes_annotation
from holdfast.trainingjob.reports.receiver import ReportReceiver

# A failed node is avoided for so long: by then Kubernetes has noticed, or the node is back.
AVOIDED_S = 120.0


class LostWorker(Struct, frozen=True):
    """A worker that was given up together with its node."""

    pod: str
    node: str
    attempt: int
    at_s: float


class WorkerMonitor:
    """All times are of the operator's own clock. The state is not persisted, and all of the state may be lost."""

    def __init__(self, receiver: ReportReceiver, witnesses: NodeWitnesses, timing: TrainingJobTiming) -> None:
        self._receiver = receiver
        self._witnesses = witnesses
        self._timing = timing
        self._running: dict[Key, tuple[int, float]] = {}
        self._lost_workers: dict[Key, tuple[LostWorker, ...]] = {}

    def with_reports(self, observed: TrainingJobSnapshot, now: datetime) -> TrainingJobSnapshot:
        """The snapshot with what the workers report in its status, so that the decision is made by it.

        `with_due_reports` takes the reports whose write is not due out again.
        """
        key = observed.job.metadata.key
        pending, due = self._receiver.inbox.pending(key), self._receiver.inbox.due(key, now)
        if observed.finished:
            return structs.replace(observed, reports=pending)
        without = self.fold_reports(observed, (), now)
        status = self.fold_reports(observed, pending, now) if pending else without
        job = structs.replace(observed.job, status=status) if status != observed.status else observed.job
        is_late = due is None or due <= now
        return structs.replace(observed, job=job, reports=pending, status_without_reports=None if is_late else without)

    def fold_reports(
        self, observed: TrainingJobSnapshot, reports: Iterable[PendingReport], now: datetime
    ) -> TrainingJobStatus:
        """The status with these reports applied, and with what only the termination message reports."""
        spec, status = observed.job.spec, observed.status
        for report in reports:
            if report.batch.uid == observed.job.metadata.uid:  # not a report of an earlier job of this name
                status = apply_report(spec, status, report.batch, report.received)
        if status != observed.status:  # the utilization alone is not worth a request to the API server
            status = with_gpu_utilization(status, self.gpu_utilization_percent(observed.job))
        updated = structs.replace(observed, job=structs.replace(observed.job, status=status))
        termination = termination_report(updated)
        return apply_report(spec, status, termination, now) if termination is not None else status

    def gpu_utilization_percent(self, job: TrainingJob) -> float | None:
        """The mean over the workers of the current attempt that report a utilization."""
        attempt = job.status.restart_count if job.status is not None else 0
        reports = self._receiver.inbox.reports_of(job.metadata.key, attempt)
        return gpu_utilization_percent(reports, self._receiver.clock(), self._timing.report_timeout_s)

    def acknowledge(self, key: Key, reports: tuple[PendingReport, ...]) -> None:
        self._receiver.inbox.acknowledge(key, reports)

    async def with_liveness(self, observed: TrainingJobSnapshot, now: datetime) -> TrainingJobSnapshot:
        """The observation with the failures that missing reports show by now."""
        key, now_s = observed.job.metadata.key, self._receiver.clock()
        self._note_running(observed, now_s)
        failure = None
        if observed.started and not observed.finished:
            reports = self._reports(observed)
            failure = self._find_hang(observed, reports) or await self._find_dead_worker(observed, now_s)
        elif not observed.finished:
            await self._give_up_overdue(observed, now)
        return structs.replace(
            observed,
            liveness_failure=failure,
            lost_pods=frozenset(worker.pod for worker in self._lost_workers.get(key, ())),
            saving_pods=frozenset(
                pod.metadata.uid for pod in self._pods_saving(observed) if now < self._save_deadline(pod)
            ),
            avoids_wrong_nodes=self._avoids_wrong_nodes(observed),
        )

    def nodes_to_avoid(self, job: TrainingJob) -> tuple[str, ...]:
        """Nodes that the job's current attempt must not start on."""
        lost, now_s = self._lost_workers.get(job.metadata.key, ()), self._receiver.clock()
        attempt = names.attempt(job)
        return tuple(
            sorted({worker.node for worker in lost if worker.attempt < attempt and now_s < worker.at_s + AVOIDED_S})
        )

    def next_check_in_s(self, observed: TrainingJobSnapshot, now: datetime) -> float | None:
        """In how long missing reports may mean something else than now."""
        if observed.finished:
            return None
        key, now_s = observed.job.metadata.key, self._receiver.clock()
        since_s = self._receiver.uptime.since_s(key)
        moments = [worker.at_s + AVOIDED_S for worker in self._lost_workers.get(key, ())]
        if observed.started:
            reports, running_s = self._reports(observed), self._running_since_s(key, now_s)
            moments += [now_s + self._witnesses.next_check_in_s(worker) for worker in self._worker_nodes(observed)]
            hang_s = hang_due_s(observed.job, reports, running_since_s=running_s, receiving_since_s=since_s)
            if hang_s is not None and hang_s <= now_s:
                hang_s = now_s + HANG_CHECK_EVERY_S  # a report without progress after the deadline proves the hang
            moments += [hang_s] if hang_s is not None else []
        later = [at_s - now_s for at_s in moments if at_s > now_s]
        if not observed.started and (check_at := next_overdue(observed.running_old_pods, now)) is not None:
            later.append((check_at - now).total_seconds())
        later += [(self._save_deadline(pod) - now).total_seconds() for pod in self._pods_saving(observed)]
        return min((seconds for seconds in later if seconds > 0), default=None)

    def forget(self, key: Key) -> None:
        self._running.pop(key, None)
        self._lost_workers.pop(key, None)
        self._receiver.inbox.forget(key)
        self._receiver.uptime.forget(key)

    def _reports(self, observed: TrainingJobSnapshot) -> AttemptReports | None:
        return self._receiver.inbox.reports_of(observed.job.metadata.key, observed.status.restart_count)

    def _note_running(self, observed: TrainingJobSnapshot, now_s: float) -> None:
        key, attempt = observed.job.metadata.key, observed.status.restart_count
        if observed.state != "Running":
            self._running.pop(key, None)
        elif self._running.get(key, (-1, 0.0))[0] != attempt:
            self._running[key] = (attempt, now_s)

    def _running_since_s(self, key: Key, now_s: float) -> float:
        return self._running.get(key, (0, now_s))[1]

    def _find_hang(self, observed: TrainingJobSnapshot, reports: AttemptReports | None) -> WorkerFailure | None:
        key, running = observed.job.metadata.key, [index_of(pod) for pod in observed.pods if not pod.is_finished]
        return find_hang(
            observed.job,
            reports,
            running,
            running_since_s=self._running_since_s(key, self._receiver.clock()),
            receiving_since_s=self._receiver.uptime.since_s(key),
        )

    def _worker_nodes(self, observed: TrainingJobSnapshot) -> tuple[WorkerNode, ...]:
        since_s = self._receiver.uptime.since_s(observed.job.metadata.key)
        return worker_nodes(observed.pods, self._reports(observed), receiving_since_s=since_s)

    async def _find_dead_worker(self, observed: TrainingJobSnapshot, now_s: float) -> WorkerFailure | None:
        workers, nodes = self._worker_nodes(observed), observed.nodes
        self._witnesses.follow(workers, nodes)
        suspected = self._suspected(workers, now_s)
        if not suspected:
            return None
        await self._witnesses.ask(suspected, nodes)
        # That may have taken long, and reports came meanwhile.
        suspected = self._suspected(self._worker_nodes(observed), self._receiver.clock())
        verdicts = {worker.name: self._witnesses.judge(worker, nodes) for worker in suspected}
        dead = [pod for worker in suspected if verdicts[worker.name].state == "dead" for pod in worker.pods]
        if not dead or can_continue_without(dead, observed.pods, observed.min_workers):
            return None
        # Nodes fail together, but the operator notices them one after another.
        lost = (pod for worker in suspected if self._follows(worker, observed) for pod in worker.pods)
        self._mark_lost(observed, lost, observed.status.restart_count)
        first = min(dead, key=index_of)
        return node_failure(
            first, failure_class_of_node(nodes.get(first.spec.node_name)), verdicts[first.spec.node_name]
        )

    def _suspected(self, workers: Iterable[WorkerNode], now_s: float) -> list[WorkerNode]:
        doubt_s = doubt_after_s(self._timing)
        return [worker for worker in workers if now_s >= worker.heard_s + doubt_s]

    def _follows(self, worker: WorkerNode, observed: TrainingJobSnapshot) -> bool:
        return self._witnesses.judge(worker, observed.nodes, FOLLOWING_FRACTION).state == "dead"

    async def _give_up_overdue(self, observed: TrainingJobSnapshot, now: datetime) -> None:
        """Gives up old pods that do not stop, with their nodes: the next attempt need not wait for these pods."""
        late = overdue(observed.running_old_pods, now)
        if late:
            suspected = overdue_nodes(late, now, self._receiver.clock(), self._timing)
            await self._witnesses.ask(suspected, observed.nodes)
            dead = (
                pod
                for worker in suspected
                if self._witnesses.judge(worker, observed.nodes).state == "dead"
                for pod in worker.pods
            )
            self._mark_lost(observed, dead, observed.status.restart_count - 1)

    def _pods_saving(self, observed: TrainingJobSnapshot) -> tuple[Pod, ...]:
        """Terminating workers whose training saves a checkpoint first."""
        reports = self._reports(observed)
        if reports is None or not any(worker.saves_on_notice for worker in reports.workers.values()):
            return ()
        return tuple(
            pod
            for pod in observed.pods
            if pod.is_terminating
            and not pod.is_finished
            and (node := observed.nodes.get(pod.spec.node_name)) is not None
            and node.is_ready
        )

    def _save_deadline(self, pod: Pod) -> datetime:
        return deletion_requested_at(pod) + timedelta(seconds=self._timing.final_save_s)

    def _mark_lost(self, observed: TrainingJobSnapshot, dead: Iterable[Pod], attempt: int) -> None:
        key, now_s = observed.job.metadata.key, self._receiver.clock()
        known = self._lost_workers.get(key, ())
        new = (LostWorker(pod.metadata.uid, pod.spec.node_name, attempt, now_s) for pod in dead)
        self._lost_workers[key] = known + tuple(
            worker for worker in new if worker.pod not in {lost.pod for lost in known}
        )

    def _avoids_wrong_nodes(self, observed: TrainingJobSnapshot) -> bool:
        job = observed.current_job
        if job is None or observed.started or job.metadata.deletion_timestamp or observed.job.spec.suspend:
            return False
        return job.metadata.annotations.get(AVOIDS, "") != avoided_nodes_annotation(
            self.nodes_to_avoid(observed.job)
        ).get(AVOIDS, "")
