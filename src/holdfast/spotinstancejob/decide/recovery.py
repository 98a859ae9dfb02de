"""What follows the loss of an attempt: the next one, and where its state comes from. Pure.

Three things are begun at once and none waits for the one before: the new attempt with its need of a node (`needs`), a
checkpoint of the survivor, and, if there is time for it, one of the replica that is about to be lost.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from msgspec import structs

from holdfast.api.spotinstancejob_status import (
    MOST_IMAGE_FAILURES,
    Cause,
    ImageFailures,
    ReplicaPhase,
    ReplicaStatus,
    Restarts,
    SpotInstanceJobStatus,
)
from holdfast.decisions import MAX_MESSAGE
from holdfast.pods.failure import WorkerFailure
from holdfast.spotinstancejob.decide.checkpoints import ask_for_checkpoint
from holdfast.spotinstancejob.decide.failure import LostAttempt
from holdfast.spotinstancejob.decide.replicas import NOT_STARTED, is_running, next_attempt, started_at
from holdfast.spotinstancejob.images import CheckpointImages, checkpoint_of, newest, status_image
from holdfast.spotinstancejob.interval import is_saved_on_notice
from holdfast.spotinstancejob.snapshot import (
    PREPARING,
    SpotInstanceJobSnapshot,
    SpotInstanceJobTiming,
    backoff_limit,
    notice_s,
    replica_of,
    with_replica,
)
from holdfast.times import format_time, parse_time

ANY_TIME = datetime.min.replace(tzinfo=UTC)
# After so many failures an image is set aside.
FAILURES_OF_AN_IMAGE = 2


def recover(
    observed: SpotInstanceJobSnapshot,
    status: SpotInstanceJobStatus,
    lost_attempts: Iterable[LostAttempt],
    now: datetime,
    timing: SpotInstanceJobTiming,
) -> SpotInstanceJobStatus:
    lost_attempts = tuple(lost_attempts)
    for lost in lost_attempts:
        status = _end_attempt(observed, status, lost, now, timing)
    for lost in lost_attempts:
        if lost.failure.is_free and not lost.image_is_unusable:
            status = _save_survivor(observed, status, lost, now)
    return status


def _end_attempt(
    observed: SpotInstanceJobSnapshot,
    status: SpotInstanceJobStatus,
    lost: LostAttempt,
    now: datetime,
    timing: SpotInstanceJobTiming,
) -> SpotInstanceJobStatus:
    old, failure = lost.replica, lost.failure
    status = with_image_failure(status, lost)
    last_words = _last_words(observed, status, failure)
    if last_words:
        failed = structs.replace(old, phase="Failed", node_name=None, machine=None, message=last_words[:MAX_MESSAGE])
        return with_replica(status, failed)
    cause = cause_of(failure)
    new = structs.replace(
        next_attempt(observed, old, "Recovering"),
        machine=old.machine if lost.may_keep_machine else None,
        cause=cause,
        message=failure.message[:MAX_MESSAGE],
        # An attempt that never ran has lost nothing more.
        lost_time=(old.lost_time if old.phase == "Starting" else None) or format_time(now),
        retry_time=_retry_time(observed, lost, now, timing),
    )
    return structs.replace(with_replica(status, new), restarts=with_restart(status.restarts, cause))


def _last_words(observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, failure: WorkerFailure) -> str:
    """Why no further attempt follows; "" when one does. The limit is that of all replicas together."""
    if failure.is_free:
        return ""
    if failure.permanent:
        return f"{failure.message} (a new attempt would fail in the same way)"
    used, limit = restarts_against_limit(status.restarts), backoff_limit(observed.job)
    return f"{failure.message} (after {used} of {limit} restarts of backoffLimit)" if used >= limit else ""


def cause_of(failure: WorkerFailure) -> Cause:
    """Nobody looks for hangs here."""
    return failure.cause if failure.cause != "hang" else "application"


def restarts_against_limit(restarts: Restarts | None) -> int:
    return restarts.out_of_memory + restarts.application if restarts is not None else 0


def with_restart(restarts: Restarts | None, cause: Cause) -> Restarts:
    old = restarts or Restarts()
    match cause:
        case "preemption":
            return structs.replace(old, preemption=old.preemption + 1)
        case "infrastructure":
            return structs.replace(old, infrastructure=old.infrastructure + 1)
        case "outOfMemory":
            return structs.replace(old, out_of_memory=old.out_of_memory + 1)
        case "application":
            return structs.replace(old, application=old.application + 1)


def _retry_time(
    observed: SpotInstanceJobSnapshot, lost: LostAttempt, now: datetime, timing: SpotInstanceJobTiming
) -> str | None:
    """No pause after an attempt that ran for long, nor before the second attempt; then a growing one.

    A machine that was taken away says nothing about the next one.
    """
    old = lost.replica
    if lost.failure.cause == "preemption":
        return None
    started = started_at(observed, old)
    ran_s = (now - parse_time(started)).total_seconds() if started != NOT_STARTED else 0.0
    if old.attempt == 0 or ran_s >= timing.stable_after_s:
        return None
    pause_s = min(timing.retry_s * 2 ** min(old.attempt - 1, 16), timing.retry_cap_s)
    return format_time(now + timedelta(seconds=pause_s))


# Where the state of the next attempt comes from.


def _save_survivor(
    observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus, lost: LostAttempt, now: datetime
) -> SpotInstanceJobStatus:
    """Have the survivor saved, and the replica itself if its machine leaves it the time."""
    own = None
    if lost.is_announced and _may_be_saved_on_notice(observed, lost.replica):
        status, own = ask_for_checkpoint(status, lost.replica, lost.replica.name, "Notice", now)
    survivor = find_survivor(observed, status)
    number = own
    if survivor is not None:
        status, number = ask_for_checkpoint(status, survivor, survivor.name, "Recovery", now)
    new = replica_of(status, lost.replica.replica)
    if new is None or number is None:
        return status
    return with_replica(status, structs.replace(new, awaited_checkpoint=number))


def find_survivor(observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus) -> ReplicaStatus | None:
    """Of the replicas that run on a node that stays the one that has run longest."""
    running = (
        each for each in status.job_statuses if is_running(observed, each) and observed.is_healthy(each.node_name or "")
    )
    return min(running, key=lambda each: (started_at(observed, each), each.replica), default=None)


def _may_be_saved_on_notice(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> bool:
    taken_s = replica.last_checkpoint_seconds if replica.last_checkpoint_image is not None else None
    return is_running(observed, replica) and is_saved_on_notice(taken_s, notice_s(observed.template))


def wants_repository(status: SpotInstanceJobStatus) -> datetime | None:
    """Since when the registry's answer has to be, if an image is to be chosen; None when nothing is to be asked."""
    waiting = [each for each in status.job_statuses if _is_undecided(each)]
    if not waiting or status.checkpoint_number == 0:
        return None
    moments = [each.lost_time for each in waiting] + [status.last_checkpoint_time]
    return max((parse_time(each) for each in moments if each), default=ANY_TIME)


def choose_sources(observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus) -> SpotInstanceJobStatus:
    """The newest valid image for each replica that no survivor's checkpoint is for, or the start where there is none.

    A replica that starts late goes on from an image, too: copies of one training are to be close together.
    """
    for replica in status.job_statuses:
        if not _is_undecided(replica):
            continue
        if status.checkpoint_number == 0:
            status = with_replica(status, structs.replace(replica, source="start"))
            continue
        view = observed.repository
        if view is None:
            continue
        found = view.checkpoints if not view.problem else known_checkpoints(observed)
        chosen = newest(found, set_aside(status))
        if chosen is not None:
            new = structs.replace(replica, source="repository", restored_from=status_image(observed.job, chosen))
        elif view.problem and status.last_checkpoint_image and status.last_checkpoint_image not in set_aside(status):
            new = structs.replace(replica, source="repository", restored_from=status.last_checkpoint_image)
        else:
            new = structs.replace(replica, source="start")
        status = with_replica(status, new)
    return status


def drop_missing_images(observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus) -> SpotInstanceJobStatus:
    """An image that was deleted before its attempt was made is no image to go on from: another one is chosen."""
    for replica in status.job_statuses:
        is_unmade = replica.phase in PREPARING or (replica.phase == "Starting" and replica.name not in observed.jobs)
        if is_unmade and replica.restored_from in observed.missing_images:
            phase: ReplicaPhase = "Recovering" if replica.cause is not None else "Pending"
            status = with_replica(status, structs.replace(replica, phase=phase, source=None, restored_from=None))
    return status


def known_checkpoints(observed: SpotInstanceJobSnapshot) -> tuple[CheckpointImages, ...]:
    """Those whose objects are still there, for when the registry can't be asked."""
    found = (checkpoint_of(observed.job, backup) for backup in observed.backups.values())
    return tuple(each for each in found if each is not None)


def _is_undecided(replica: ReplicaStatus) -> bool:
    return replica.phase in PREPARING and replica.source is None and not replica.awaited_checkpoint


# Images that replicas could not go on from.


def with_image_failure(status: SpotInstanceJobStatus, lost: LostAttempt) -> SpotInstanceJobStatus:
    """What is nobody's fault says nothing about the image."""
    image = lost.replica.restored_from
    if not image or not lost.may_keep_machine:
        return status
    old = next((each for each in status.image_failures if each.image == image), ImageFailures(image=image))
    new = (
        structs.replace(old, restore=old.restore + 1)
        if lost.image_is_unusable
        else structs.replace(old, application=old.application + 1)
    )
    others = tuple(each for each in status.image_failures if each.image != image)
    return structs.replace(status, image_failures=(*others, new)[-MOST_IMAGE_FAILURES:])


def set_aside(status: SpotInstanceJobStatus) -> frozenset[str]:
    """The images that no replica starts from any more: an older one may do."""
    failed = (each for each in status.image_failures if max(each.restore, each.application) >= FAILURES_OF_AN_IMAGE)
    return frozenset(each.image for each in failed)


def goes_back(status: SpotInstanceJobStatus) -> bool:
    """Whether replicas go on from exactly what is chosen for them, and not from what they have in an object store.

    The state from which attempts failed may be in the store of any replica, also as a later checkpoint.
    """
    return bool(set_aside(status))
