"""Gets each attempt its node: one that is free, or else a machine. Pure.

A need is one attempt of one replica. Its machines are numbered, and have their number in status before their object is
made: whoever reads status knows what was ordered, and the next one follows only when the one before it has ended.
"""

from collections.abc import Iterator
from datetime import datetime

from msgspec import structs

from holdfast.api.machine_ends import is_gone
from holdfast.api.machine_ends import status_of as machine_status
from holdfast.api.spotinstancejob_status import ReplicaPhase, ReplicaStatus, SpotInstanceJobStatus
from holdfast.scheduling.machine_pools import Resting, ZoneChoice
from holdfast.spotinstancejob import names
from holdfast.spotinstancejob.snapshot import (
    PREPARING,
    SpotInstanceJobSnapshot,
    is_ready,
    slow_from,
    with_replica,
)


def check_nodes(observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus) -> SpotInstanceJobStatus:
    """An attempt whose node is lost before its Job was made looks for another one.

    A machine that ends is of no use, but the next one is not ordered before the cloud says that it is gone.
    """
    for replica in status.job_statuses:
        if replica.phase not in PREPARING:
            continue
        new = replica
        if new.node_name is not None and not observed.is_healthy(new.node_name):
            new = structs.replace(new, node_name=None)
        machine = observed.machine_of(new)
        if machine is not None and is_gone(machine):
            new = structs.replace(new, node_name=None, machine=None)
        if new != replica:
            status = with_replica(status, new)
    return status


def waiting_for_node(status: SpotInstanceJobStatus) -> Iterator[ReplicaStatus]:
    """The replicas that need a node or a machine, and have ordered none."""
    for replica in status.job_statuses:
        if replica.phase in PREPARING and replica.node_name is None and replica.machine is None:
            yield replica


def unmade_machines(observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus) -> Iterator[ReplicaStatus]:
    """The replicas whose machine was ordered, by status, and has no object yet."""
    for replica in status.job_statuses:
        if replica.phase in PREPARING and replica.machine is not None and replica.machine not in observed.machines:
            yield replica


def provide(observed: SpotInstanceJobSnapshot, status: SpotInstanceJobStatus) -> SpotInstanceJobStatus:
    for replica in status.job_statuses:
        if replica.phase in PREPARING and replica.node_name is None:
            status = with_replica(status, _provided(observed, replica))
    return status


def _provided(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> ReplicaStatus:
    if replica.machine is not None:
        return _from_machine(observed, replica)
    node = observed.free_nodes.get(replica.replica)
    if node:
        return structs.replace(replica, node_name=node)
    if isinstance(observed.zones.get(replica.replica), ZoneChoice):
        name = names.machine_object_name(
            observed.job.metadata.name, replica.replica, replica.attempt, replica.machine_try
        )
        return structs.replace(
            replica, machine=name, machine_try=replica.machine_try + 1, phase=_phase(replica, "Provisioning")
        )
    return structs.replace(replica, phase=_phase(replica, "Pending"))


def _from_machine(observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> ReplicaStatus:
    machine = observed.machine_of(replica)
    node = machine_status(machine).node_name if machine is not None and is_ready(machine) else None
    if node is None or not observed.is_healthy(node) or observed.capacity_taken_by.get(replica.replica):
        return replica
    return structs.replace(replica, node_name=node)


def _phase(replica: ReplicaStatus, phase: ReplicaPhase) -> ReplicaPhase:
    """A replica that was lost is recovering until its next attempt starts."""
    return "Recovering" if replica.phase == "Recovering" else phase


def needs_ahead(observed: SpotInstanceJobSnapshot) -> Iterator[datetime]:
    """When a zone may be asked again, and when a machine is slow."""
    yield from (each.until for each in observed.zones.values() if isinstance(each, Resting))
    yield from filter(None, (slow_from(observed, each) for each in observed.status.job_statuses))
