"""What is decided about what is seen of a TrainingJob."""

from typing import Any

from holdfast.api.core.objects import Node
from holdfast.decisions import Finish, StateReason, Wait
from holdfast.scheduling.gang import AdmissionDecision
from holdfast.trainingjob.decide.decision import Action, decide
from holdfast.trainingjob.decide.snapshot import TIMING, TrainingJobSnapshot
from tests.trainingjobs import at, node, running, training_job

ROOM = AdmissionDecision(admitted=True)
NO_ROOM = AdmissionDecision(admitted=False, message="needs 2 × 8 GPUs; 1 node has 8 free")
BOTH = (running(0), running(1))
HERE = {"gpu-3": node()}
LOST: dict[str, Node] = {}


def seen(
    state: str = "", *, spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **more: Any
) -> TrainingJobSnapshot:
    body = {**({"state": state} if state else {}), **(status or {})}
    return TrainingJobSnapshot(**{"job": training_job(spec, status=body), "nodes": HERE, "admission": ROOM, **more})


def course(observed: TrainingJobSnapshot, now: float = 60) -> Action:
    return decide(observed, at(now), TIMING)


def held(observed: TrainingJobSnapshot, now: float = 60) -> StateReason:
    found = course(observed, now)
    assert isinstance(found, Wait)
    assert found.finding is not None
    return found.finding


def ended(observed: TrainingJobSnapshot, now: float = 60) -> StateReason:
    found = course(observed, now)
    assert isinstance(found, Finish)
    return found.finding
