"""What is to be done for a status that is written."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.scheduling.machine_pools import Resting, ZoneChoice
from holdfast.spotinstancejob.decide.actions import (
    Action,
    DeleteBackup,
    DeleteImagePod,
    GiveBack,
    OrderMachine,
    SaveReplica,
    StartReplica,
    StopJob,
)
from holdfast.spotinstancejob.decide.work import clean_up_ended, work
from holdfast.spotinstancejob.snapshot import TIMING, SpotInstanceJobSnapshot
from tests.spotinstancejob.jobs import finished_backup
from tests.spotinstancejob.machines import machine
from tests.spotinstancejob.seen import failed_pod, job_of, pod_of, replica, seen, serving
from tests.trainingjobs import at, deleted, node, stamp

NEXT_PREPARED = {**replica(0, "Recovering", attempt=1), "nodeName": "gpu-2", "source": "survivor"}
CHECKPOINT = {"number": 1, "replica": 1, "job": "bert-r1", "reason": "Recovery", "time": stamp(0)}


def text(action: Action) -> str:
    match action:
        case SaveReplica(checkpoint, pod, timeout_s):
            return f"save {checkpoint.number} of {pod.metadata.name} within {timeout_s}"
        case OrderMachine(replica, zone):
            return f"order {replica.machine} in {zone}"
        case StartReplica(replica):
            return f"start {replica.name}"
        case StopJob(job):
            return f"stop {job.metadata.name}"
        case GiveBack(found):
            return f"give back {found.metadata.name}"
        case DeleteBackup(backup):
            return f"delete {backup.metadata.name}"
        case DeleteImagePod(pod):
            return f"delete {pod.metadata.name}"
    return type(action).__name__


def to_do(observed: SpotInstanceJobSnapshot) -> list[str]:
    return [text(each) for each in work(observed, at(100), TIMING)]


def test_the_survivor_is_saved_before_the_machine_is_ordered() -> None:
    lost = {**replica(0, "Recovering", attempt=1), "machine": "bert-r0-1-m0", "machineTry": 1}
    observed = seen(
        lost,
        replica(1),
        jobs=(job_of(0), job_of(1)),
        pods=(pod_of(0), pod_of(1)),
        status={"checkpointsInProgress": [CHECKPOINT]},
        zones={0: ZoneChoice("us-central1-b")},
    )
    assert to_do(observed) == ["save 1 of bert-r1-abcde within 300", "order bert-r0-1-m0 in us-central1-b"]


def test_what_is_made_is_not_made_again() -> None:
    lost = {**replica(0, "Recovering", attempt=1), "machine": "bert-r0-1-m0", "machineTry": 1}
    backup = structs.replace(finished_backup(1, 1), status=None)
    observed = seen(
        lost,
        replica(1),
        status={"checkpointsInProgress": [CHECKPOINT]},
        machines=(machine(0, attempt=1), serving(1)),
        backups=(backup,),
        zones={0: ZoneChoice("us-central1-b")},
    )
    assert [each for each in to_do(observed) if not each.startswith("give back")] == []


def test_an_ordered_machine_waits_until_a_zone_may_be_asked() -> None:
    lost = {**replica(0, "Provisioning"), "machine": "bert-r0-0-m0", "machineTry": 1}
    assert to_do(seen(lost, zones={0: Resting(at(200), "Stockout", "none")})) == []


@pytest.mark.parametrize(
    ("new", "is_stopped"),
    [
        ({"nodeName": "gpu-1", "source": "survivor"}, True),
        ({"nodeName": "gpu-1"}, False),
        ({"source": "survivor"}, False),
        ({"nodeName": "gpu-1", "source": "survivor", "retryTime": stamp(200)}, False),
    ],
)
def test_the_attempt_before_is_stopped_once_the_next_one_can_start(new: Any, is_stopped: bool) -> None:
    observed = seen({**replica(0, "Recovering", attempt=1), **new}, jobs=(job_of(0),), pods=(pod_of(0),))
    assert to_do(observed) == (["stop bert-r0"] if is_stopped else [])


def test_the_jobs_of_replicas_that_are_stopped_or_not_wanted_any_more_go() -> None:
    observed = seen(replica(0, "Stopped"), replica(1), jobs=(job_of(0), job_of(1), job_of(2)))
    assert to_do(observed) == ["stop bert-r0", "stop bert-r2"]


@pytest.mark.parametrize("now_is", [replica(0, "Stopped"), replica(1), NEXT_PREPARED])
def test_a_job_whose_pod_has_succeeded_is_left_to_say_so(now_is: Any) -> None:
    """Suspended, not wanted any more or about to be replaced: a training that is done is done."""
    observed = seen(now_is, jobs=(job_of(0), job_of(1)), pods=(pod_of(0, phase="Succeeded"), pod_of(1)))
    assert "stop bert-r0" not in to_do(observed)


def test_the_last_job_of_a_failed_replica_stays_to_be_looked_at() -> None:
    failed = seen(replica(0, "Failed", attempt=1), jobs=(job_of(0), job_of(0, "Failed", attempt=1)))
    assert to_do(failed) == ["stop bert-r0"]


def test_a_job_is_made_for_an_attempt_that_has_started() -> None:
    assert to_do(seen(replica(0, "Starting"), jobs=(), pods=())) == ["start bert-r0"]
    assert to_do(seen(replica(0, "Starting"))) == []


NEXT = {**replica(0, "Recovering", attempt=1), "machine": "bert-r0-1-m0", "machineTry": 1}


@pytest.mark.parametrize(
    ("facts", "is_given_back"),
    [
        # It was announced, and runs on as long as it is let.
        ({"pods": (pod_of(0),)}, False),
        ({"pods": (failed_pod(0),)}, True),
        ({"pods": ()}, True),
        # It hangs: nothing else would end it, and the next attempt waits for that.
        ({"pods": (deleted(pod_of(0), asked=10),)}, True),
        ({"pods": (deleted(pod_of(0), asked=11),)}, False),
        ({"pods": (pod_of(0),), "nodes": (node("gpu-0", ready=False),)}, True),
        ({"pods": (pod_of(0),), "nodes": ()}, True),
    ],
)
def test_a_machine_is_given_back_when_nothing_runs_there_any_more(facts: Any, is_given_back: bool) -> None:
    observed = seen(NEXT, jobs=(job_of(0),), machines=(serving(0), machine(0, attempt=1)), **facts)
    assert to_do(observed) == (["give back bert-r0-0-m0"] if is_given_back else [])


def test_machines_that_boot_for_nobody_and_that_have_ended_are_given_back() -> None:
    ended = machine(1, phase="End", step="Gone")
    observed = seen(replica(0), machines=(machine(0, attempt=3), ended, machine(2, deleted=True)))
    assert to_do(observed) == ["give back bert-r0-3-m0", "give back bert-r1-0-m0"]


def test_checkpoints_that_nobody_waits_for_are_called_off_and_old_objects_go() -> None:
    called_off = structs.replace(finished_backup(9), status=None)
    done = tuple(finished_backup(number) for number in (1, 2, 3, 4))
    assert to_do(seen(replica(0), backups=(*done, called_off))) == ["delete bert-r0-c1", "delete bert-r0-c9"]


def test_pods_that_bring_images_go_when_they_have_brought_them() -> None:
    pod = pod_of(0)
    awaited = seen(replica(0, "Starting"), jobs=(), pods=(), image_pods={"bert-r0-base-image": pod})
    assert to_do(awaited) == ["start bert-r0"]
    done = seen(replica(0, "Starting"), image_pods={"bert-r0-base-image": pod})
    assert to_do(done) == ["delete bert-r0-abcde"]


def test_of_a_job_that_has_ended_only_what_ended_by_itself_stays() -> None:
    observed = seen(
        replica(0, "Succeeded"),
        replica(1, "Stopped"),
        jobs=(job_of(0, "Complete"), job_of(1), job_of(2, "Failed"), job_of(3, deleted=True)),
        machines=(serving(0), machine(1, deleted=True)),
        backups=(finished_backup(1), structs.replace(finished_backup(2), status=None)),
        image_pods={"bert-r1-base-image": pod_of(1)},
    )
    assert [text(each) for each in clean_up_ended(observed)] == [
        "stop bert-r1",
        "give back bert-r0-0-m0",
        "delete bert-r0-c2",
        "delete bert-r1-abcde",
    ]
