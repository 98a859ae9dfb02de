"""One reconcile of a kind: what is written, in which order, and when the next reconcile is due."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from msgspec import Struct, structs

from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.cluster.errors import ServerError
from holdfast.cluster.resources import TRAINING_JOBS
from holdfast.decisions import Snapshot
from holdfast.runtime.controller import Done, RequeueAfter, TerminalError
from holdfast.runtime.events import Recorder
from holdfast.runtime.informer import Informers
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.read_your_writes import WriteTracker
from holdfast.runtime.reconciler import OBSTACLE_RECHECK_S, EventMessage, KindReconciler
from tests.runtime.scripted import ScriptedCluster
from tests.trainingjobs import training_job

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BERT = Key("ml", "bert")


class Seen(Snapshot, frozen=True, kw_only=True):
    job: TrainingJob

    @property
    def finished(self) -> bool:
        return self.job.status is not None and self.job.status.state in ("Completed", "Failed")


class Step(Struct, frozen=True):
    """Shows this state after it was applied."""

    state: str
    error: Exception | None = None
    blocked_by: str = ""


class Playing(KindReconciler[TrainingJob, TrainingJobStatus, Seen, Step]):
    """A kind whose decision is given; it keeps what happened, in order."""

    def __init__(self, cluster: ScriptedCluster, informers: Informers, *steps: Step) -> None:
        recorder = Recorder(cluster, instance="test", now=lambda: NOW, metrics=Metrics())
        writer = WriteTracker(cluster, informers)
        store = informers.store(TRAINING_JOBS)
        super().__init__(TRAINING_JOBS, store, writer, recorder, self, now=lambda: NOW)
        self.steps = steps
        self.happened: list[str] = []
        self.noticed: str | None = None
        self.due: list[float] = []
        self.expires: datetime | None = None

    async def observe(self, obj: TrainingJob, now: datetime) -> Seen:
        status = structs.replace(obj.status or TrainingJobStatus(), progress=self.noticed)
        return Seen(job=structs.replace(obj, status=status) if self.noticed else obj)

    def decide(self, snapshot: Seen, now: datetime) -> tuple[Step, ...]:
        self.happened.append("decided")
        return (Step("Failed"),) if snapshot.rejected_reason else self.steps

    async def apply(self, action: Step, snapshot: Seen, now: datetime) -> Seen | None:
        if action.error is not None:
            raise action.error
        self.happened.append(f"applied {action.state}")
        return structs.replace(snapshot, blocked_by=action.blocked_by) if action.state != "behind" else None

    def next_status(self, snapshot: Seen, action: Step, now: datetime) -> TrainingJobStatus:
        return structs.replace(snapshot.job.status or TrainingJobStatus(), state=action.state)

    def object_of(self, snapshot: Seen) -> TrainingJob:
        return snapshot.job

    def with_object(self, snapshot: Seen, obj: TrainingJob) -> Seen:
        return structs.replace(snapshot, job=obj)

    def events_for(self, obj: TrainingJob, status: TrainingJobStatus) -> Iterator[EventMessage]:
        old = obj.status.state if obj.status is not None else None
        self.happened.append(f"event {old} to {status.state}")
        return iter(())

    def log_fields(self, status: TrainingJobStatus) -> Mapping[str, object]:
        return {"state": status.state}

    def expiry(self, obj: TrainingJob) -> datetime | None:
        return self.expires

    def requeue_in_s(self, snapshot: Seen, action: Step, now: datetime) -> Iterator[float]:
        yield from self.due

    def recorded(self, snapshot: Seen) -> None:
        self.happened.append("recorded")

    def status_written(self, _obj: TrainingJob, status: TrainingJobStatus) -> None:
        self.happened.append(f"wrote {status.state}")

    def reconciled(self, key: Key, result: str, seconds: float, error: BaseException | None = None) -> None:
        raise NotImplementedError


class ScriptedKind:
    def __init__(self) -> None:
        self.cluster = ScriptedCluster()
        self.informers = Informers(self.cluster, (), metrics=Metrics(), random=Random(1))
        self.store = self.informers.store(TRAINING_JOBS)

    def kind(self, *steps: Step, status: dict[str, Any] | None = None) -> Playing:
        playing = Playing(self.cluster, self.informers, *steps)
        self.store.put(self.cluster.put(TRAINING_JOBS, training_job(status=status), namespace="ml"))
        return playing

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.peek(TRAINING_JOBS, BERT).get("status", {})
        return found


@pytest.fixture
def scripted() -> ScriptedKind:
    return ScriptedKind()


async def test_each_action_is_in_status_before_the_next_is_applied(scripted: ScriptedKind) -> None:
    kind = scripted.kind(Step("Pending"), Step("Running"))
    assert await kind.reconcile(BERT) == Done()
    assert kind.happened == [
        "decided",
        *("applied Pending", "wrote Pending", "event None to Pending", "recorded"),
        *("applied Running", "wrote Running", "event Pending to Running", "recorded"),
    ]
    assert scripted.status["state"] == "Running"


async def test_an_unchanged_status_is_not_written(scripted: ScriptedKind) -> None:
    kind = scripted.kind(Step("Running"), status={"state": "Running"})
    await kind.reconcile(BERT)
    assert kind.happened == ["decided", "applied Running", "recorded"]


async def test_what_was_noticed_and_what_was_decided_are_one_write(scripted: ScriptedKind) -> None:
    kind = scripted.kind(Step("Running"), status={"state": "Pending"})
    kind.noticed = "45%"
    await kind.reconcile(BERT)
    assert kind.happened.count("wrote Running") == 1
    assert (scripted.status["state"], scripted.status["progress"]) == ("Running", "45%")


async def test_what_was_noticed_is_written_even_if_the_action_fails(scripted: ScriptedKind) -> None:
    kind = scripted.kind(Step("Running", error=ServerError("down")), status={"state": "Pending"})
    kind.noticed = "45%"
    with pytest.raises(ServerError):
        await kind.reconcile(BERT)
    assert (scripted.status["state"], scripted.status["progress"]) == ("Pending", "45%")
    assert kind.happened[-1] == "recorded"


async def test_a_decision_from_caches_that_are_behind_writes_nothing(scripted: ScriptedKind) -> None:
    kind = scripted.kind(Step("behind"), status={"state": "Pending"})
    kind.due = [3.0]
    assert await kind.reconcile(BERT) == Done()
    assert scripted.status == {"state": "Pending"}


async def test_the_earliest_moment_counts_and_an_obstacle_is_looked_at_again(scripted: ScriptedKind) -> None:
    kind = scripted.kind(Step("Pending", blocked_by="a name is taken"))
    assert await kind.reconcile(BERT) == RequeueAfter(OBSTACLE_RECHECK_S)
    assert await scripted.kind(Step("Pending")).reconcile(BERT) == Done()
    again = scripted.kind(Step("Pending"))
    again.due = [90.0, 7.0]
    assert await again.reconcile(BERT) == RequeueAfter(7.0)


@pytest.mark.parametrize(
    ("state", "left_s", "is_there"), [("Failed", 0, False), ("Failed", 5, True), ("Running", 0, True)]
)
async def test_only_what_is_finished_expires(scripted: ScriptedKind, state: str, left_s: int, is_there: bool) -> None:
    kind = scripted.kind(Step(state))
    kind.expires = NOW + timedelta(seconds=left_s)
    result = await kind.reconcile(BERT)
    assert result == (RequeueAfter(5.0) if left_s else Done())
    assert len((await scripted.cluster.list(TRAINING_JOBS)).items) == is_there


async def test_an_error_that_no_retry_can_mend_is_in_status(scripted: ScriptedKind) -> None:
    kind = scripted.kind(status={"state": "Pending"})
    await kind.report_terminal_error(BERT, TerminalError("Refused", "no"))
    assert scripted.status["state"] == "Failed"


async def test_what_is_gone_needs_nothing(scripted: ScriptedKind) -> None:
    kind = scripted.kind(Step("Running"))
    assert await kind.reconcile(Key("ml", "nobody")) == Done()
    await kind.report_terminal_error(Key("ml", "nobody"), TerminalError("Refused", "no"))
    assert kind.happened == []
