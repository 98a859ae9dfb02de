"""What a TrainingJob shows of what is seen of it."""

from typing import Any

from msgspec import structs

from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.scheduling.gang import AdmissionDecision
from holdfast.trainingjob.decide.decision import decide
from holdfast.trainingjob.decide.snapshot import TIMING, TrainingJobSnapshot
from holdfast.trainingjob.decide.status import next_status
from tests.trainingjobs import at, node, running, training_job

ROOM = AdmissionDecision(admitted=True)
NO_ROOM = AdmissionDecision(admitted=False, message="needs 2 × 8 GPUs; 1 node has 8 free")
HERE = {"gpu-3": node()}
BOTH = (running(0), running(1))
READY = {"active": 2, "ready": 2}
COMPLETE = {"Complete": "CompletionsReached"}


def seen(spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **more: Any) -> TrainingJobSnapshot:
    return TrainingJobSnapshot(**{"job": training_job(spec, status=status), "nodes": HERE, "admission": ROOM, **more})


def shown(observed: TrainingJobSnapshot, now: float = 60) -> TrainingJobStatus:
    return next_status(observed, decide(observed, at(now), TIMING), at(now))


def after(status: TrainingJobStatus, observed: TrainingJobSnapshot, now: float = 60) -> TrainingJobStatus:
    """The status that follows `status` when this is seen next."""
    return shown(structs.replace(observed, job=structs.replace(observed.job, status=status)), now)


def reasons(status: TrainingJobStatus) -> dict[str, str]:
    return {condition.type: condition.reason for condition in status.conditions}
