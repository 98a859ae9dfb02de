"""What becomes of the workers' reports, and what their silence means."""

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta

import structlog
from msgspec import Struct, structs

from holdfast.api.builtin import Pod
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob, TrainingJobStatus
from holdfast.cluster.errors import ClusterError
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import LEASES
from holdfast.planning.trainingjob.classes import Loss
from holdfast.planning.trainingjob.course import Again, Finish, Over, decide
from holdfast.planning.trainingjob.hang import find_hang, hang_due_s
from holdfast.planning.trainingjob.heard import Heard, gpu_utilization_percent
from holdfast.planning.trainingjob.last_word import last_word
from holdfast.planning.trainingjob.loss import by_node, index_of, told_to_go_at
from holdfast.planning.trainingjob.observed import Observed
from holdfast.planning.trainingjob.progress import fold, with_gpu_utilization
from holdfast.planning.trainingjob.silence import (
    LOOK_EVERY_S,
    Pulse,
    feel,
    find_dead,
    find_doubtful,
    fresh,
    goes_on_without,
    loss_of,
    next_look_s,
    next_overdue,
    overdue,
    suspects,
)
from holdfast.planning.trainingjob.timing import Timing
from holdfast.reports.inbox import Letter
from holdfast.reports.office import Office
from holdfast.workloads.trainingjob import names
from holdfast.workloads.trainingjob.avoiding import AVOIDS, note

NODE_LEASES = "kube-node-lease"
# So long after its loss a node is avoided: by then Kubernetes has noticed, or the node is back.
AVOIDED_S = 120.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Lost(Struct, frozen=True):
    """A worker that was given up with its node."""

    pod: str
    node: str
    attempt: int
    at_s: float


class Listening:
    """It remembers by the operator's own clock; nothing of it outlives the operator, and all of it may be lost."""

    def __init__(self, office: Office, cluster: Cluster, timing: Timing) -> None:
        self._office = office
        self._cluster = cluster
        self._timing = timing
        self._running: dict[Key, tuple[int, float]] = {}
        self._pulses: dict[str, Pulse] = {}
        self._lost: dict[Key, tuple[Lost, ...]] = {}

    def letters(self, observed: Observed, now: datetime) -> tuple[Letter, ...]:
        """What is to be written now: when it is time, and before an attempt ends."""
        key = observed.job.metadata.key
        due = self._office.inbox.due(key, now)
        if due is None:
            return ()
        is_ending = isinstance(decide(observed, now, self._timing), Again | Finish | Over)
        return self._office.inbox.letters(key) if is_ending or due <= now else ()

    def read(self, observed: Observed, letters: Iterable[Letter], now: datetime) -> TrainingJobStatus:
        """The status with what they tell, and with what was left unsaid."""
        spec, status = observed.job.spec, observed.status
        for letter in letters:
            if letter.batch.uid == observed.job.metadata.uid:  # not of an earlier job of this name
                status = fold(spec, status, letter.batch, letter.received)
        if status != observed.status:  # the utilization alone is not worth a request to the API server
            status = with_gpu_utilization(status, self.gpu_utilization_percent(observed.job))
        told = structs.replace(observed, job=structs.replace(observed.job, status=status))
        word = last_word(told)
        return fold(spec, status, word, now) if word is not None else status

    def gpu_utilization_percent(self, job: TrainingJob) -> float | None:
        """The mean over the workers of the current attempt that report it."""
        attempt = job.status.restart_count if job.status is not None else 0
        heard = self._office.inbox.heard(job.metadata.key, attempt)
        return gpu_utilization_percent(heard, self._office.clock(), self._timing.silent_s)

    def settle(self, key: Key, letters: tuple[Letter, ...]) -> None:
        self._office.inbox.settle(key, letters)

    async def add(self, observed: Observed, now: datetime) -> Observed:
        """With what the workers' silence means, by now."""
        key, now_s = observed.job.metadata.key, self._office.clock()
        self._note_running(observed, now_s)
        self._pulses = fresh(self._pulses, now_s)
        loss = None
        if observed.started and not observed.finished:
            heard = self._heard(observed)
            loss = self._hang(observed, heard) or await self._death(observed, heard, now_s)
        elif not observed.finished:
            await self._give_up_overdue(observed, now)
        return structs.replace(
            observed,
            unheard=loss,
            given_up=frozenset(lost.pod for lost in self._lost.get(key, ())),
            saving=frozenset(pod.metadata.uid for pod in self._saving(observed) if now < self._saved_by(pod)),
            misplaced=self._is_misplaced(observed),
        )

    def avoided(self, job: TrainingJob) -> tuple[str, ...]:
        """Nodes that the job's current attempt is not to start on."""
        lost, now_s = self._lost.get(job.metadata.key, ()), self._office.clock()
        attempt = names.attempt(job)
        return tuple(sorted({one.node for one in lost if one.attempt < attempt and now_s < one.at_s + AVOIDED_S}))

    def next_look_in_s(self, observed: Observed, now: datetime) -> float | None:
        """When silence may mean something else than now."""
        if observed.finished:
            return None
        key, now_s = observed.job.metadata.key, self._office.clock()
        since_s = self._office.hearing.since_s(key)
        moments = [one.at_s + AVOIDED_S for one in self._lost.get(key, ())]
        if observed.started:
            heard, running_s = self._heard(observed), self._running_since_s(key, now_s)
            look_s = next_look_s(observed.pods, heard, hearing_since_s=since_s, now_s=now_s, timing=self._timing)
            hang_s = hang_due_s(observed.job, heard, running_since_s=running_s, hearing_since_s=since_s)
            if hang_s is not None and hang_s <= now_s:
                hang_s = now_s + LOOK_EVERY_S  # a sign of life that came after the deadline proves it
            moments += [at_s for at_s in (look_s, hang_s) if at_s is not None]
        later = [at_s - now_s for at_s in moments if at_s > now_s]
        if not observed.started and (look_at := next_overdue(observed.leftovers, now)) is not None:
            later.append((look_at - now).total_seconds())
        later += [(self._saved_by(pod) - now).total_seconds() for pod in self._saving(observed)]
        return min((seconds for seconds in later if seconds > 0), default=None)

    def forget(self, key: Key) -> None:
        self._running.pop(key, None)
        self._lost.pop(key, None)
        self._office.inbox.forget(key)
        self._office.hearing.forget(key)

    def _heard(self, observed: Observed) -> Heard | None:
        return self._office.inbox.heard(observed.job.metadata.key, observed.status.restart_count)

    def _note_running(self, observed: Observed, now_s: float) -> None:
        key, attempt = observed.job.metadata.key, observed.status.restart_count
        if observed.state != "Running":
            self._running.pop(key, None)
        elif self._running.get(key, (-1, 0.0))[0] != attempt:
            self._running[key] = (attempt, now_s)

    def _running_since_s(self, key: Key, now_s: float) -> float:
        return self._running.get(key, (0, now_s))[1]

    def _hang(self, observed: Observed, heard: Heard | None) -> Loss | None:
        key, running = observed.job.metadata.key, [index_of(pod) for pod in observed.pods if not pod.has_ended]
        return find_hang(
            observed.job,
            heard,
            running,
            running_since_s=self._running_since_s(key, self._office.clock()),
            hearing_since_s=self._office.hearing.since_s(key),
        )

    async def _death(self, observed: Observed, heard: Heard | None, now_s: float) -> Loss | None:
        since_s = self._office.hearing.since_s(observed.job.metadata.key)
        suspected = suspects(observed.pods, heard, hearing_since_s=since_s, now_s=now_s, timing=self._timing)
        if not suspected:
            return None
        await asyncio.gather(*(self._feel(name) for name in {pod.spec.node_name for pod in suspected}))
        dead = find_dead(suspected, self._pulses, self._timing)
        if not dead or goes_on_without(dead, observed.pods, observed.fewest):
            return None
        self._give_up(observed, find_doubtful(suspected, self._pulses, self._timing), observed.status.restart_count)
        first = min(dead, key=index_of)
        return loss_of(first, by_node(observed.nodes.get(first.spec.node_name)), self._timing)

    async def _give_up_overdue(self, observed: Observed, now: datetime) -> None:
        """Workers of before that are not gone, with their node: the next attempt need not wait for them."""
        late = overdue(observed.leftovers, now)
        if late:
            await asyncio.gather(*(self._feel(name) for name in {pod.spec.node_name for pod in late}))
            self._give_up(observed, find_dead(late, self._pulses, self._timing), observed.status.restart_count - 1)

    async def _feel(self, node: str) -> None:
        """A Lease that can't be read says nothing: the look is missed, and missed looks prove nothing."""
        try:
            lease = await self._cluster.get(LEASES, Key(NODE_LEASES, node))
        except ClusterError as error:
            log.info("can't look at a node's Lease", node=node, reason=str(error))
            return
        now_s = self._office.clock()
        self._pulses[node] = feel(self._pulses.get(node), lease.metadata.resource_version, now_s)

    def _saving(self, observed: Observed) -> tuple[Pod, ...]:
        """Workers that are told to go, and whose training saves first."""
        heard = self._heard(observed)
        if heard is None or not any(voice.heeds for voice in heard.voices.values()):
            return ()
        return tuple(
            pod
            for pod in observed.pods
            if pod.is_terminating
            and not pod.has_ended
            and (node := observed.nodes.get(pod.spec.node_name)) is not None
            and node.is_ready
        )

    def _saved_by(self, pod: Pod) -> datetime:
        return told_to_go_at(pod) + timedelta(seconds=self._timing.final_save_s)

    def _give_up(self, observed: Observed, dead: Iterable[Pod], attempt: int) -> None:
        key, now_s = observed.job.metadata.key, self._office.clock()
        known = self._lost.get(key, ())
        new = (Lost(pod.metadata.uid, pod.spec.node_name, attempt, now_s) for pod in dead)
        self._lost[key] = known + tuple(one for one in new if one.pod not in {lost.pod for lost in known})

    def _is_misplaced(self, observed: Observed) -> bool:
        job = observed.workers
        if job is None or observed.started or job.metadata.deletion_timestamp or observed.job.spec.suspend:
            return False
        return job.metadata.annotations.get(AVOIDS, "") != note(self.avoided(observed.job)).get(AVOIDS, "")
