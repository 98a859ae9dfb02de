"""When an attempt starts: with a node and an image, and when nothing of an earlier one can run any more."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.api.spotinstancejob_status import ReplicaStatus, SpotInstanceJobStatus
from holdfast.spotinstancejob.decide.actions import StartReplica
from holdfast.spotinstancejob.decide.start import blocking_pods, is_prepared, start, starts_ahead
from holdfast.spotinstancejob.decide.work import work
from holdfast.spotinstancejob.snapshot import TIMING
from tests.spotinstancejob.jobs import CPU_CONTAINER, digest, finished_backup, image, spot_job
from tests.spotinstancejob.machines import machine
from tests.spotinstancejob.seen import failed_pod, job_of, pod_of, replica, seen, serving
from tests.trainingjobs import at, deleted, node, stamp

PREPARED = {
    **replica(0, "Recovering", attempt=1),
    "nodeName": "gpu-1",
    "source": "survivor",
    "restoredFrom": image(4),
    "cause": "preemption",
    "lostTime": stamp(500),
}
OLD: dict[str, Any] = {"jobs": (job_of(0),)}


def started(*replicas: Any, now: float = 1000, **facts: Any) -> SpotInstanceJobStatus:
    observed = seen(*replicas, **facts)
    return start(observed, observed.status, at(now), TIMING)


def test_an_attempt_with_node_and_image_starts_and_its_recovery_is_noted() -> None:
    status = started(PREPARED, status={"lastCheckpointImage": image(4), "lastCheckpointTime": stamp(440)})
    assert status.job_statuses[0].phase == "Starting"
    (recovery,) = status.recoveries
    assert (recovery.time, recovery.replica, recovery.cause) == (stamp(1000), 0, "preemption")
    assert (recovery.source, recovery.image, recovery.lost_seconds) == ("survivor", image(4), 60)


@pytest.mark.parametrize("missing", ["nodeName", "source"])
def test_it_does_not_start_without(missing: str) -> None:
    status = started({name: value for name, value in PREPARED.items() if name != missing})
    assert status.job_statuses[0].phase == "Recovering"


def test_it_does_not_start_before_its_pause_is_over() -> None:
    paused = {**PREPARED, "retryTime": stamp(1010)}
    assert started(paused, now=1009).job_statuses[0].phase == "Recovering"
    assert started(paused, now=1010).job_statuses[0].phase == "Starting"
    observed = seen(paused)
    assert list(starts_ahead(observed, observed.status, TIMING)) == [at(1010)]
    assert not is_prepared(observed.status.job_statuses[0], at(1009), TIMING)


def test_a_pause_that_was_set_by_a_clock_that_was_ahead_is_over() -> None:
    paused = {**PREPARED, "retryTime": stamp(1000 + TIMING.retry_cap_s)}
    assert started(paused, now=1000).job_statuses[0].phase == "Recovering"
    assert started(paused, now=999).job_statuses[0].phase == "Starting"


def test_the_first_start_is_no_recovery_and_decides_how_replicas_are_saved() -> None:
    pending = {**replica(0, "Pending"), "nodeName": "gpu-0", "source": "start"}
    for job, can_restore, mode in (
        (spot_job(), True, "application"),
        (spot_job(CPU_CONTAINER), True, "container"),
        (spot_job(CPU_CONTAINER), False, "application"),
        (spot_job(checkpoints={"mode": "container"}), False, "container"),
    ):
        status = started(pending, job=job, can_restore=can_restore, status={"checkpointMode": None})
        assert (status.checkpoint_mode, status.recoveries) == (mode, ())
    kept = started(pending, job=spot_job(CPU_CONTAINER), can_restore=False, status={"checkpointMode": "container"})
    assert kept.checkpoint_mode == "container"


def test_a_newest_image_that_was_deleted_from_the_registry_is_not_gone_on_from() -> None:
    """It would be chosen again and again: as missing it is dropped, and as the newest it is taken."""
    newest = {"lastCheckpointImage": image(9), "lastCheckpointTime": stamp(440)}
    status = started(PREPARED, status=newest, missing_images=frozenset([image(9)]))
    assert status.job_statuses[0].restored_from == image(4)


def test_what_was_saved_while_the_machine_was_waited_for_is_used() -> None:
    def restored_from(status: dict[str, Any], **fields: Any) -> ReplicaStatus:
        return started({**PREPARED, **fields}, status=status).job_statuses[0]

    newer = {"lastCheckpointImage": image(9)}
    assert restored_from(newer).restored_from == image(9)
    assert restored_from({"lastCheckpointImage": image(3)}).restored_from == image(4)
    failed = {**newer, "imageFailures": [{"image": image(9), "restore": 2}]}
    assert restored_from(failed).restored_from == image(4)
    assert restored_from({}, source="start", restoredFrom=None).restored_from is None


def test_a_replica_that_gets_its_node_late_goes_on_from_what_others_have_saved_meanwhile() -> None:
    """From the beginning it would be hours behind, and still be the survivor that others go on from."""
    late = {**replica(1, "Provisioning"), "nodeName": "gpu-1", "source": "start"}
    saved = {"lastCheckpointImage": image(9)}
    (found,) = started(late, status=saved).job_statuses
    assert (found.phase, found.source, found.restored_from) == ("Starting", "repository", image(9))
    recovered = started({**PREPARED, "source": "start", "restoredFrom": None}, status=saved).recoveries[0]
    assert (recovered.source, recovered.image) == ("repository", image(9))


@pytest.mark.parametrize(
    ("fields", "labels", "restored"),
    [
        ({}, {}, None),
        ({}, {"holdfast.dev/restore": "true"}, image(9)),
        ({"machine": "bert-r1-0-m0"}, {}, image(9)),
    ],
)
def test_it_begins_on_a_free_node_that_makes_no_containers_from_checkpoints(
    fields: dict[str, str], labels: dict[str, str], restored: str | None
) -> None:
    late = {**replica(1, "Pending"), "nodeName": "gpu-1", "source": "start", **fields}
    saved = {"lastCheckpointImage": image(9), "checkpointMode": "container"}
    (found,) = started(late, status=saved, nodes=(node("gpu-1", labels=labels),)).job_statuses
    assert found.restored_from == restored


def test_the_start_anew_loses_all_since_the_beginning() -> None:
    status = started({**PREPARED, "source": "start", "restoredFrom": None})
    assert [(each.source, each.image, each.lost_seconds) for each in status.recoveries] == [("start", None, 500)]


def test_only_the_last_ten_recoveries_are_kept() -> None:
    old = [
        {"time": stamp(number), "replica": 1, "cause": "preemption", "source": "survivor", "image": image(1)}
        for number in range(10)
    ]
    kept = started(PREPARED, status={"recoveries": old}).recoveries
    assert len(kept) == 10
    assert (kept[0].time, kept[-1].time) == (stamp(1), stamp(1000))


def test_the_age_of_the_image_is_known_from_its_object_too() -> None:
    restored = {**PREPARED, "restoredFrom": f"{image(4)}@{digest(4)}"}
    assert started(restored, backups=(finished_backup(4),)).recoveries[0].lost_seconds == 496


SILENT = node("gpu-0", ready=False)


@pytest.mark.parametrize(
    ("facts", "may_run"),
    [
        ({"pods": (pod_of(),)}, True),
        ({"pods": (deleted(pod_of(), asked=10),)}, True),
        ({"pods": (failed_pod(),)}, False),
        ({"pods": (pod_of(),), "nodes": ()}, False),
        # The scheduler may bind it until it is gone.
        ({"pods": (pod_of(node="", phase="Pending"),)}, True),
        # A silent node: for as long as nobody has stopped the pod, and then for some time.
        ({"pods": (pod_of(),), "nodes": (SILENT,)}, True),
        ({"pods": (deleted(pod_of(), asked=880),), "nodes": (SILENT,), "now": 969}, True),
        ({"pods": (deleted(pod_of(), asked=880),), "nodes": (SILENT,), "now": 970}, False),
        # A machine: until the cloud says that it is off.
        ({"pods": (deleted(pod_of(), asked=0),), "nodes": (SILENT,), "machines": (serving(),)}, True),
        (
            {"pods": (deleted(pod_of(), asked=0),), "nodes": (SILENT,), "machines": (serving(state="TERMINATED"),)},
            False,
        ),
        ({"pods": (pod_of(),), "machines": (serving(phase="End", step="Gone"),)}, False),
        ({"pods": (pod_of(),), "machines": (serving(phase="End", step="Deleting"),)}, True),
    ],
)
def test_a_pod_of_the_attempt_before_keeps_it_waiting_while_it_may_run(facts: Any, may_run: bool) -> None:
    now = facts.pop("now", 1000)
    observed = seen(PREPARED, **OLD, **facts)
    assert bool(blocking_pods(observed, observed.status.job_statuses[0], at(now), TIMING)) == may_run


def test_a_machine_that_nobody_hears_of_keeps_it_waiting_though_its_pod_was_deleted() -> None:
    lost = serving(phase="End", step="Deleting")
    assert started(PREPARED, machines=(lost,), nodes=(node("gpu-1"),)).job_statuses[0].phase == "Recovering"
    assert started(PREPARED, machines=(lost,)).job_statuses[0].phase == "Starting"
    gone = serving(phase="End", step="Gone")
    assert started(PREPARED, machines=(gone,), nodes=(node("gpu-1"),)).job_statuses[0].phase == "Starting"
    never_joined = machine(phase="End", step="Deleting")
    assert started(PREPARED, machines=(never_joined,)).job_statuses[0].phase == "Starting"


def test_a_pod_whose_job_somebody_else_has_deleted_keeps_it_waiting_too() -> None:
    stopping = deleted(pod_of(), asked=990)
    assert started(PREPARED, jobs=(), pods=(stopping,)).job_statuses[0].phase == "Recovering"
    assert started(PREPARED, jobs=(), pods=(failed_pod(),)).job_statuses[0].phase == "Starting"
    again = replica(0, "Starting")
    for pods, is_made in (((stopping,), False), ((), True)):
        observed = seen(again, jobs=(), pods=pods)
        assert (StartReplica(observed.status.job_statuses[0]) in work(observed, at(1000), TIMING)) == is_made


def test_pods_of_other_replicas_do_not_matter() -> None:
    observed = seen(PREPARED, replica(1))
    assert blocking_pods(observed, observed.status.job_statuses[0], at(0), TIMING) == ()


def test_a_pod_that_is_given_up_by_time_is_looked_at_then() -> None:
    observed = structs.replace(seen(PREPARED, **OLD), pods=(deleted(pod_of(), asked=880),), nodes={"gpu-0": SILENT})
    assert list(starts_ahead(observed, observed.status, TIMING)) == [at(970)]
