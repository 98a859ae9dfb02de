"""What a job waits for, and what would change it, in a sentence. Pure."""

from datetime import datetime

from msgspec import Struct

from holdfast.api.machine_ends import end_reason, is_ending
from holdfast.api.machine_ends import status_of as machine_status
from holdfast.api.spotinstancejob_status import ReplicaStatus
from holdfast.pods.restore.failure import base_image_failure
from holdfast.pods.start_problems import problem_of
from holdfast.scheduling.machine_pools import Resting
from holdfast.spotinstancejob import names
from holdfast.spotinstancejob.decide.end import is_saving
from holdfast.spotinstancejob.decide.replicas import is_running
from holdfast.spotinstancejob.decide.start import blocking_machines
from holdfast.spotinstancejob.replica_job import foreign_pull_credential
from holdfast.spotinstancejob.snapshot import SpotInstanceJobSnapshot, condition_of, machine_condition, slow_from

# Reasons of the condition Launched, while it is False, that are steps and no obstacles.
LAUNCHING = ("Insert",)


class Obstacle(Struct, frozen=True):
    """What keeps a replica from getting a machine: a word for programs, and a sentence for people."""

    reason: str
    message: str


def what_is_waited_for(observed: SpotInstanceJobSnapshot, now: datetime) -> str:
    status, spec = observed.status, observed.job.spec
    if spec.suspend:
        return _suspended(observed)
    replicas = status.job_statuses
    running = sum(is_running(observed, each) for each in replicas)
    parts = [f"{running} of {len(replicas)} replicas run"]
    if observed.blocked_by:
        parts.append(observed.blocked_by)
    texts: dict[str, list[int]] = {}
    for replica in replicas:
        if text := _text(observed, replica, now):
            texts.setdefault(text, []).append(replica.replica)
    for text, numbers in texts.items():
        who = f"replica {numbers[0]}" if len(numbers) == 1 else f"replicas {', '.join(map(str, numbers))}"
        parts.append(f"{who}: {text}")
    saved = condition_of(status, "Checkpointed")
    if saved is not None and saved.reason == "CheckpointFailed":
        parts.append(f"{saved.message}; the next try is at its next turn")
    if saved is not None and saved.reason == "NothingSaved":
        parts.append(saved.message)
    if credential := foreign_pull_credential(observed.job):
        parts.append(credential)
    return "; ".join(parts)


def _suspended(observed: SpotInstanceJobSnapshot) -> str:
    if is_saving(observed.status):
        numbers = sorted(each.replica for each in observed.status.checkpoints_in_progress)
        who = f"replica {numbers[0]} is" if len(numbers) == 1 else f"replicas {', '.join(map(str, numbers))} are"
        return f"spec.suspend is true: {who} saved before all is stopped"
    image = observed.status.last_checkpoint_image
    begins = "begins anew" if observed.status.start_time is not None else "begins"
    since = f"goes on from {image}" if image else begins
    return f"spec.suspend is true: set it to false, and the training {since}"


def _text(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus, now: datetime) -> str:
    """What the replica waits for; "" for one that runs."""
    match replica.phase:
        case "Failed":
            return replica.message or "failed"
        case "Starting":
            return _starting(observed, replica)
        case "Pending" | "Provisioning" | "Recovering":
            waits = " and ".join(filter(None, (_for_image(observed, replica), _for_node(observed, replica, now))))
            waits = waits or _for_start(observed, replica)
            return f"lost ({replica.message}), and {waits}" if replica.message and replica.cause else waits
    return ""


def _for_node(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus, now: datetime) -> str:
    if replica.node_name is not None:
        return ""
    obstacle = obstacle_of(observed, replica)
    if obstacle is not None:
        return obstacle.message
    return _for_machine(observed, replica, now) if replica.machine is not None else "looking for a node"


def _for_machine(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus, now: datetime) -> str:
    """Of one that is slow, also what it says itself: most are quick, and their steps are not worth a write each."""
    machine, slow_at = observed.machine_of(replica), slow_from(observed, replica)
    said = machine_status(machine).message if machine is not None and slow_at is not None and now >= slow_at else ""
    return f"waiting for machine {replica.machine}" + (f" ({said})" if said else "")


def obstacle_of(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> Obstacle | None:
    """None while a machine is on its way, and when nothing keeps one from being ordered."""
    machine = observed.machine_of(replica)
    if machine is None:
        return _not_ordered(observed, replica)
    if is_ending(machine):
        why = end_reason(machine)
        text = f"waiting until machine {machine.metadata.name} is gone"
        said = f" ({why.message})" if why is not None else ""
        return Obstacle(why.reason if why is not None else "MachineDeleted", f"{text}{said}; another one follows")
    launched = machine_condition(machine, "Launched")
    if launched is not None and launched.status == "False" and launched.reason not in LAUNCHING:
        return Obstacle(launched.reason, launched.message)
    if taken := observed.capacity_taken_by.get(replica.replica):
        return Obstacle("RoomTaken", f"machine {machine.metadata.name} is ready, and {taken}")
    return None


def _not_ordered(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> Obstacle | None:
    name = observed.job.spec.spot_instance_vm_ref.name
    if observed.template is None:
        return Obstacle("TemplateMissing", f"no node has room, and there is no SpotInstanceVM {name}: create it")
    if observed.unfit_template:
        return Obstacle("TooFewGPUs", observed.unfit_template)
    zone = observed.zones.get(replica.replica)
    if isinstance(zone, Resting):
        return Obstacle(zone.reason, zone.message)
    return None


def _for_image(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> str:
    if replica.source is not None:
        return ""
    if replica.awaited_checkpoint:
        found = (each for each in observed.status.checkpoints_in_progress if each.number == replica.awaited_checkpoint)
        wanted = next(found, None)
        of = f" of replica {wanted.replica}" if wanted is not None and wanted.replica != replica.replica else ""
        name = names.backup_name(
            observed.job.metadata.name, wanted.replica if wanted else replica.replica, replica.awaited_checkpoint
        )
        return f"waiting for the checkpoint{of} (CheckpointBackup {name})"
    problem = observed.repository.problem if observed.repository is not None else ""
    return f"waiting for the repository: {problem}" if problem else "looking for the newest image in the repository"


def _for_start(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> str:
    if replica.retry_time is not None:
        return f"next try at {replica.retry_time}"
    machines = blocking_machines(observed, replica)
    if machines:
        return f"waiting until machine {machines[0].metadata.name} is gone: what ran there may still run"
    return f"waiting for the pod of an earlier attempt to stop before it starts on {replica.node_name}"


def _starting(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> str:
    if replica.name not in observed.jobs:
        return _not_made(observed, replica)
    if replica.name in observed.pod_problems:
        return f"its pod is refused: {observed.pod_problems[replica.name]}"
    pod = observed.pod_of(replica.name)
    problem = problem_of(pod) if pod is not None else ""
    if problem:
        return f"its pod can't start on {replica.node_name} yet: {problem}"
    return f"waiting for its pod to start on {replica.node_name}"


def _not_made(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> str:
    """What its Job waits for, which is not made yet."""
    name = names.base_image_pod_name(observed.job.metadata.name, replica.replica, replica.attempt)
    pod = observed.image_pods.get(name)
    problem = base_image_failure(pod) if pod is not None else ""
    if problem:
        return problem
    if replica.restored_from and replica.restored_from in observed.undescribed:
        said = observed.repository.problem if observed.repository is not None else ""
        return f"waiting for the registry to describe {replica.restored_from}" + (f": {said}" if said else "")
    return f"waiting for its pod to start on {replica.node_name}"
