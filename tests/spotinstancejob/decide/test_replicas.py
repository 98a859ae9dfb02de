"""Which replicas there are, and which attempt each of them is at."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.spotinstancejob.decide.replicas import is_running, match_replicas, next_attempt, note_running
from tests.spotinstancejob.jobs import spot_job
from tests.spotinstancejob.seen import job_of, pod_of, replica, seen, serving
from tests.trainingjobs import at, deleted, stamp


def test_a_new_job_has_as_many_replicas_as_its_spec_asks_for() -> None:
    observed = seen(job=spot_job(spec={"replicas": 3}))
    made = match_replicas(observed, observed.status).job_statuses
    assert [(each.name, each.replica, each.attempt, each.phase) for each in made] == [
        ("bert-r0", 0, 0, "Pending"),
        ("bert-r1", 1, 0, "Pending"),
        ("bert-r2", 2, 0, "Pending"),
    ]


def test_what_started_last_goes_first() -> None:
    observed = seen(
        replica(0),
        replica(1),
        replica(2),
        job=spot_job(spec={"replicas": 2}),
        pods=(pod_of(0, started=20), pod_of(1, started=30), pod_of(2, started=10)),
    )
    assert [each.replica for each in match_replicas(observed, observed.status).job_statuses] == [0, 2]


@pytest.mark.parametrize("phase", ["Pending", "Provisioning", "Recovering", "Starting", "Failed"])
def test_what_does_not_run_goes_before_what_runs(phase: str) -> None:
    observed = seen(replica(0, phase), replica(1), job=spot_job(spec={"replicas": 1}))
    assert [each.replica for each in match_replicas(observed, observed.status).job_statuses] == [1]


def test_a_number_is_used_again_and_its_attempts_are_not_while_anything_of_them_is_left() -> None:
    job = spot_job(spec={"replicas": 2})
    gone = seen(replica(0), job=job)
    assert match_replicas(gone, gone.status).job_statuses[1].name == "bert-r1"
    left = seen(replica(0), job=job, jobs=(job_of(0), job_of(1, attempt=4, deleted=True)))
    assert match_replicas(left, left.status).job_statuses[1].name == "bert-r1-5"
    machine = seen(replica(0), job=job, machines=(serving(1, attempt=2),))
    assert match_replicas(machine, machine.status).job_statuses[1].attempt == 3


def test_the_next_attempt_has_neither_node_nor_image_and_knows_its_checkpoints() -> None:
    saved: dict[str, Any] = {
        "lastCheckpointImage": "r.example/c:1",
        "lastCheckpointTime": stamp(5),
        "lastCheckpointSeconds": 7,
    }
    observed = seen(replica(0, attempt=3, machine="bert-r0-3-m0", machineTry=2, restoredFrom="r.example/c:0", **saved))
    made = next_attempt(observed, observed.status.job_statuses[0], "Recovering")
    assert (made.name, made.attempt, made.phase) == ("bert-r0-4", 4, "Recovering")
    assert (made.node_name, made.machine, made.machine_try, made.restored_from, made.source) == (
        None,
        None,
        0,
        None,
        None,
    )
    assert (made.last_checkpoint_image, made.last_checkpoint_seconds) == ("r.example/c:1", 7)


def test_a_replica_runs_when_its_pod_does_and_with_the_first_the_job_has_started() -> None:
    waiting = seen(replica(0, "Starting"), pods=(pod_of(0, phase="Pending"),), status={"startTime": None})
    assert note_running(waiting, waiting.status, at(7)).job_statuses[0].phase == "Starting"
    started = seen(replica(0, "Starting"), status={"startTime": None})
    noted = note_running(started, started.status, at(7))
    assert (noted.job_statuses[0].phase, noted.start_time) == ("Running", stamp(7))
    later = seen(replica(0), replica(1, "Starting"))
    assert note_running(later, later.status, at(7)).start_time == stamp(0)


def test_a_replica_whose_pod_is_being_stopped_does_not_run_any_more() -> None:
    observed = seen(replica(0))
    assert is_running(observed, observed.status.job_statuses[0])
    stopping = structs.replace(observed, pods=(deleted(pod_of(0), asked=1),))
    assert not is_running(stopping, stopping.status.job_statuses[0])
