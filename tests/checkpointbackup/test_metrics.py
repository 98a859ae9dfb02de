"""What is counted and which Events are recorded, for every transition of the status, whoever wrote it."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from holdfast.api.core.objects import Pod
from holdfast.checkpointbackup.metrics import AgentGauges, CheckpointBackupMetrics, events_for
from holdfast.checkpointbackup.observe import app_of
from tests.checkpointbackup.backups import BEGUN, IMAGE, backup, pod, scheduled
from tests.trainingjobs import stamp

JSON = dict[str, Any]


def condition(kind: str, status: str, reason: str, message: str = "") -> JSON:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": stamp(0)}


class Meter:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.passed_s = 0.0
        self.metrics = CheckpointBackupMetrics(self.registry, lambda: self.passed_s)

    def write(self, old: JSON | None, new: JSON) -> None:
        status = backup(status=new).status
        assert status is not None
        self.metrics.status_written(backup(status=old), status)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"checkpointbackup_{name}", labels)


PUSHED = {**BEGUN, "phase": "ImagePushed", "builtImages": [IMAGE], "bytes": 4096, "frozenSeconds": 1.5}
COMPLETED = {**PUSHED, "phase": "Completed"}


def test_counters_begin_at_zero() -> None:
    meter = Meter()
    assert meter.value("runs_total", mode="container", result="Failed") == 0
    assert meter.value("runs_total", mode="none", result="Failed") == 0
    assert meter.value("image_bytes_total", mode="application") == 0


def test_a_run_is_counted_when_it_ends_with_what_it_took() -> None:
    meter = Meter()
    meter.write(None, BEGUN)
    meter.write(BEGUN, {**BEGUN, "phase": "ImagePushing"})
    meter.passed_s = 7.0
    meter.write({**BEGUN, "phase": "ImagePushing"}, PUSHED)
    assert meter.value("runs_total", mode="container", result="Completed") == 0
    meter.write(PUSHED, COMPLETED)
    meter.write(COMPLETED, {**COMPLETED, "message": "the schedule has ended"})
    assert meter.value("runs_total", mode="container", result="Completed") == 1
    assert meter.value("image_bytes_total", mode="container") == 4096
    assert meter.value("frozen_seconds_sum") == 1.5
    assert (meter.value("push_seconds_sum", mode="container"), meter.value("push_seconds_count", mode="container")) == (
        7.0,
        1,
    )


def test_a_run_that_could_not_begin_has_no_mode() -> None:
    meter = Meter()
    meter.write(COMPLETED, {"run": 2, "phase": "Failed"})
    assert meter.value("runs_total", mode="none", result="Failed") == 1
    assert meter.value("image_bytes_total", mode="container") == 0


def test_a_refused_spec_is_no_run() -> None:
    meter = Meter()
    meter.write(None, {"phase": "Failed"})
    assert meter.value("runs_total", mode="none", result="Failed") == 0


def test_a_failed_run_adds_neither_bytes_nor_a_freeze_of_the_run_before() -> None:
    meter = Meter()
    begun = {**COMPLETED, "run": 2, "phase": None, "builtImages": []}
    meter.write(begun, {**begun, "phase": "Failed"})
    assert meter.value("runs_total", mode="container", result="Failed") == 1
    assert (meter.value("image_bytes_total", mode="container"), meter.value("frozen_seconds_count")) == (0, 0)


def test_missed_runs_and_deleted_images_are_counted() -> None:
    meter = Meter()
    meter.write({**BEGUN, "missedRuns": 2}, {**BEGUN, "missedRuns": 5})
    meter.metrics.images_deleted(4)
    assert (meter.value("missed_runs_total"), meter.value("deleted_images_total")) == (3, 4)


TRANSITIONS: list[tuple[str, JSON | None, JSON, list[tuple[str, bool]]]] = [
    ("begun", None, BEGUN, [("RunStarted", False)]),
    ("the next one", COMPLETED, {**BEGUN, "run": 2}, [("RunStarted", False)]),
    ("a phase", BEGUN, {**BEGUN, "phase": "Checkpointing", "message": "freezes"}, []),
    ("completed", PUSHED, COMPLETED, [("Completed", False)]),
    ("pod deleted", PUSHED, {**PUSHED, "phase": "CompletedPodDeleted"}, [("CompletedPodDeleted", False)]),
    ("half", PUSHED, {**PUSHED, "phase": "CompletedWithError"}, [("CompletedWithError", True)]),
    ("failed", BEGUN, {**BEGUN, "phase": "Failed"}, [("Failed", True)]),
    ("never begun", COMPLETED, {"run": 2, "phase": "Failed"}, [("Failed", True)]),
    ("refused", None, {"phase": "Failed", "message": "no"}, [("Failed", True)]),
    ("waits for its pod", None, {"message": "there is no pod"}, [("Waiting", True)]),
    ("waits for its agent", {**BEGUN, "message": "begun"}, {**BEGUN, "message": "no agent"}, [("Waiting", True)]),
    ("still waits", {"message": "no pod"}, {"message": "no pod"}, []),
    ("counts", BEGUN, {**BEGUN, "missedRuns": 1}, []),
    (
        "suspended",
        COMPLETED,
        {**COMPLETED, "message": "s", "conditions": [condition("Scheduled", "False", "Suspended", "s")]},
        [("Suspended", False)],
    ),
    (
        "over",
        COMPLETED,
        {**COMPLETED, "message": "s", "conditions": [condition("Scheduled", "False", "PodEnded", "s")]},
        [("ScheduleEnded", False)],
    ),
    (
        "the last run's word again",
        {**COMPLETED, "message": "suspended"},
        {**COMPLETED, "message": "done", "conditions": [condition("Completed", "True", "Completed", "done")]},
        [],
    ),
]


@pytest.mark.parametrize(
    ("old", "new", "expected"), [each[1:] for each in TRANSITIONS], ids=[t[0] for t in TRANSITIONS]
)
def test_each_transition_that_matters_is_one_event(
    old: JSON | None, new: JSON, expected: list[tuple[str, bool]]
) -> None:
    status = scheduled(status=new).status
    assert status is not None
    assert [(event.reason, event.warning) for event in events_for(scheduled(status=old), status)] == expected


def agent(node: str, *, ready: bool) -> Pod:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    labels = {"app.kubernetes.io/name": "holdfast-node"}
    return pod(on=node, uid=f"uid-of-{node}", metadata={"labels": labels}, conditions=conditions)


def test_each_node_with_an_agent_says_whether_it_is_ready() -> None:
    registry = CollectorRegistry()
    # An agent that ends beside the one that has taken its place.
    shown = [agent("a", ready=True), agent("b", ready=False), agent("c", ready=False), agent("c", ready=True)]
    AgentGauges(registry, lambda: shown)
    values = [registry.get_sample_value("holdfast_node_agent_ready", {"node": node}) for node in "abc"]
    assert values == [1, 0, 1]


def test_only_agents_that_have_a_node_are_of_interest() -> None:
    assert app_of(agent("a", ready=True))
    assert not app_of(agent("", ready=False))
    assert not app_of(pod())
