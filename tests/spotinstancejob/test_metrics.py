"""Each step of a job is counted once, and told once as an Event."""

from typing import Any

import msgspec
from msgspec import structs
from prometheus_client import CollectorRegistry

from holdfast.api.meta import Key
from holdfast.api.spotinstancejob_status import SpotInstanceJobStatus
from holdfast.spotinstancejob.metrics import SpotInstanceJobGauges, SpotInstanceJobMetrics, events_for
from tests.spotinstancejob.jobs import spot_job
from tests.spotinstancejob.machines import condition
from tests.spotinstancejob.seen import replica
from tests.trainingjobs import at, stamp

RECOVERY = {"time": stamp(0), "replica": 0, "cause": "preemption", "source": "survivor", "image": "r/c:4"}


def status(*replicas: Any, **fields: Any) -> SpotInstanceJobStatus:
    return msgspec.convert({"jobStatuses": list(replicas), **fields}, SpotInstanceJobStatus)


def told(before: SpotInstanceJobStatus | None, after: SpotInstanceJobStatus) -> list[tuple[str, bool]]:
    job = structs.replace(spot_job(), status=before)
    return [(each.reason, each.warning) for each in events_for(job, after)]


def test_every_step_of_a_replica_has_its_event() -> None:
    pending = status(replica(0, "Pending"))
    ordered = status(replica(0, "Provisioning", machine="bert-r0-0-m0", machineTry=1))
    starting = status({**replica(0, "Starting"), "machine": "bert-r0-0-m0", "machineTry": 1})
    running = status({**replica(0), "machine": "bert-r0-0-m0", "machineTry": 1})
    lost = status(replica(0, "Recovering", attempt=1, cause="preemption", message="was preempted"))
    assert told(None, pending) == []
    assert told(pending, ordered) == [("MachineOrdered", False)]
    assert told(ordered, starting) == [("NodeChosen", False)]
    assert told(starting, running) == [("Running", False)]
    assert told(running, lost) == [("ReplicaLost", True)]
    assert told(running, status(replica(0, "Failed", message="exited with code 1"))) == [("ReplicaFailed", True)]
    assert told(running, running) == []


def test_a_resumed_replica_is_not_called_lost() -> None:
    assert told(status(replica(0, "Stopped")), status(replica(0, "Pending", attempt=1))) == []


def test_another_machine_for_the_same_need_is_told_again() -> None:
    first = status(replica(0, "Provisioning", machine="bert-r0-0-m0", machineTry=1))
    second = status(replica(0, "Provisioning", machine="bert-r0-0-m1", machineTry=2))
    assert told(first, second) == [("MachineOrdered", False)]


def test_a_recovery_is_told_and_a_start_from_the_beginning_is_a_warning() -> None:
    assert told(status(), status(recoveries=[RECOVERY])) == [("Recovered", False)]
    anew = {**RECOVERY, "source": "start", "replica": 1}
    assert told(status(recoveries=[RECOVERY]), status(recoveries=[RECOVERY, anew])) == [
        ("RestartedFromBeginning", True)
    ]


def test_checkpoints_are_told_by_their_result() -> None:
    saved = status(conditions=[condition("Checkpointed", "True", "Saved", "replica 0 was saved as r/c:4")])
    failed = status(conditions=[condition("Checkpointed", "True", "CheckpointFailed", "checkpoint 5 failed")])
    assert told(status(), saved) == [("Saved", False)]
    assert told(saved, failed) == [("CheckpointFailed", True)]
    assert told(failed, failed) == []
    nothing = status(conditions=[condition("Checkpointed", "False", "NothingSaved", "replica 0 was asked to save")])
    assert told(status(), nothing) == [("NothingSaved", True)]
    registry = CollectorRegistry()
    SpotInstanceJobMetrics(registry).status_written(spot_job(), nothing)
    assert registry.get_sample_value("spotinstancejob_checkpoints_total", {"result": "failed"}) == 0.0


def test_what_keeps_machines_from_being_made_is_told_once() -> None:
    ordered = status(conditions=[condition("Provisioning", "True", "MachinesOrdered")])
    stockout = status(conditions=[condition("Provisioning", "False", "Stockout", "next try at 12:00")])
    later = status(conditions=[condition("Provisioning", "False", "Stockout", "next try at 12:01")])
    assert told(ordered, stockout) == [("Stockout", True)]
    assert told(stockout, later) == []
    assert told(ordered, status(conditions=[condition("Provisioning", "False", "NotNeeded")])) == []


def test_the_end_is_told() -> None:
    assert told(status(phase="Running"), status(phase="Succeeded")) == [("Succeeded", False)]
    assert told(status(phase="Running"), status(phase="Failed")) == [("Failed", True)]
    assert told(status(phase="Running"), status(phase="Suspended")) == [("Suspended", False)]


def test_transitions_are_counted_once() -> None:
    registry = CollectorRegistry()
    metrics = SpotInstanceJobMetrics(registry)

    def write(before: SpotInstanceJobStatus, after: SpotInstanceJobStatus) -> None:
        metrics.status_written(structs.replace(spot_job(), status=before), after)

    def value(name: str, **labels: str) -> float:
        found = registry.get_sample_value(f"spotinstancejob_{name}", labels)
        assert found is not None, name
        return found

    assert value("recoveries_total", source="repository") == 0
    running = status(replica(0), restarts={"preemption": 1})
    lost = status(replica(0, "Recovering", attempt=1, machine="bert-r0-1-m0", machineTry=1), restarts={"preemption": 2})
    write(running, lost)
    assert value("replica_losses_total", cause="preemption") == 1
    assert value("machines_ordered_total") == 1
    back = status(replica(0, attempt=1), restarts={"preemption": 2}, recoveries=[{**RECOVERY, "lostSeconds": 45}])
    write(lost, back)
    write(back, back)
    assert value("recoveries_total", source="survivor") == 1
    assert value("lost_seconds_sum") == 45
    write(back, status(replica(0), conditions=[condition("Checkpointed", "True", "Saved", "as r/c:5")]))
    assert value("checkpoints_total", result="saved") == 1
    write(status(phase="Running"), status(phase="Succeeded"))
    assert value("ended_total", phase="Succeeded") == 1
    metrics.reconciled(Key("ml", "bert"), "done", 0.01)
    assert value("reconcile_duration_seconds_count", result="done") == 1


def test_recoveries_are_counted_when_the_list_is_cut_at_its_beginning() -> None:
    many = [{**RECOVERY, "time": stamp(number)} for number in range(11)]
    events = told(status(recoveries=many[:10]), status(recoveries=many[1:]))
    assert events == [("Recovered", False)]


def gauges(**fields: Any) -> dict[str, float]:
    """Of one job, an hour after it was made, by name."""
    registry = CollectorRegistry()
    SpotInstanceJobGauges(registry, lambda: [spot_job(status=fields)], now=lambda: at(3600))
    labels = {"namespace": "ml", "spot_instance_job": "bert"}
    names = ("waiting_seconds", "checkpoint_age_seconds", "unsaved_seconds", "checkpoint_interval_seconds")
    values = {name: registry.get_sample_value(f"spotinstancejob_{name}", labels) for name in names}
    phase = {"namespace": "ml", "phase": fields["phase"]}
    assert registry.get_sample_value("spotinstancejob_jobs", phase) == 1
    return {name: value for name, value in values.items() if value is not None}


def since(status: str, seconds: float) -> dict[str, Any]:
    return {"type": "Running", "status": status, "reason": "x", "message": "", "lastTransitionTime": stamp(seconds)}


def test_a_running_job_shows_how_old_its_checkpoint_is_and_what_a_loss_would_cost() -> None:
    shown = gauges(
        phase="Running",
        conditions=[since("True", 1800)],
        lastCheckpointTime=stamp(600),
        checkpointIntervalSeconds=1200,
    )
    assert shown == {
        "checkpoint_age_seconds": 3000,
        "unsaved_seconds": 1800,
        "checkpoint_interval_seconds": 1200,
    }


def test_a_job_waits_while_no_replica_runs() -> None:
    assert gauges(phase="Provisioning", conditions=[since("False", 600)]) == {"waiting_seconds": 3000}
    assert gauges(phase="Recovering", conditions=[since("False", 3000)]) == {"waiting_seconds": 600}
    assert "waiting_seconds" not in gauges(phase="Recovering", conditions=[since("True", 0)])
    assert gauges(phase="Suspended", conditions=[since("False", 0)]) == {}


def test_an_ended_job_shows_its_phase_alone() -> None:
    over = {"lastCheckpointTime": stamp(600), "checkpointIntervalSeconds": 1200}
    assert gauges(phase="Succeeded", conditions=[since("False", 0)], **over) == {}
