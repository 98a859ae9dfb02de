"""Free nodes for replicas, in the ledger that all kinds share."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import structs

from holdfast.api.core.objects import Node
from holdfast.api.meta import Key
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.api.spotinstancejob_status import ReplicaStatus, SpotInstanceJobStatus
from holdfast.cluster.resources import SPOT_INSTANCE_JOBS
from holdfast.runtime.informer import Informers
from holdfast.runtime.ledger import SharedLedger
from holdfast.scheduling.ledger import Ledger
from holdfast.spotinstancejob.placement import ReplicaPlacement, reservation_id
from tests.scheduling.nodes import node, pod
from tests.spotinstancejob.jobs import CPU_CONTAINER, spot_job
from tests.spotinstancejob.seen import replica
from tests.trainingjob.objects.family import DEFAULTS


class _Shared(SharedLedger):
    """One that follows no stores."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def attach(self, informers: Informers) -> None:
        pass


class Wired:
    """A placement on a ledger that knows these nodes; `woken` are the jobs that it has queued."""

    def __init__(self, *nodes: Node) -> None:
        self.ledger = Ledger()
        for each in nodes:
            self.ledger.node_changed(None, each)
        self.handlers: list[Any] = []
        self.woken: list[Key] = []
        shared = _Shared(self.ledger)
        self.placement = ReplicaPlacement(shared, DEFAULTS)
        self.placement.attach(self, self.woken.append)  # type: ignore[arg-type]

    def of(self, resource: Any) -> "Wired":
        assert resource is SPOT_INSTANCE_JOBS
        return self

    def job_changed(self, old: SpotInstanceJob | None, new: SpotInstanceJob | None) -> None:
        (handler,) = self.handlers
        handler(old, new)

    def find(self, number: int = 0, *excluded: str, job: SpotInstanceJob | None = None, restores: bool = False) -> str:
        return self.placement.find(job or spot_job(), replica_status(number), excluded, restores=restores)


def replica_status(number: int = 0) -> ReplicaStatus:
    return msgspec.convert(replica(number, "Pending"), ReplicaStatus)


def with_replicas(*replicas: Any, **fields: Any) -> SpotInstanceJob:
    status = msgspec.convert({"jobStatuses": list(replicas), **fields}, SpotInstanceJobStatus)
    return structs.replace(spot_job(), status=status)


async def test_the_node_with_the_most_free_gpus_is_found_and_held_for_the_moment() -> None:
    wired = Wired(node("a", gpus=1), node("b", gpus=2))
    assert wired.find() == "b"
    assert wired.find(1, "b") == "a"
    assert wired.find(1, "a", "b") == ""
    assert set(wired.ledger.reservations) == {reservation_id(spot_job(), replica_status(0))}


@pytest.mark.parametrize(
    "offered",
    [
        node("a", gpus=0),
        node("a", gpus=1, ready=False),
        node("a", gpus=1, taints=[{"key": "team", "value": "other", "effect": "NoSchedule"}]),
        node("a", gpus=1, unschedulable=True),
        # Machines are for the replicas that they were ordered for.
        node("a", gpus=1, labels={"holdfast.dev/instance": "uid"}),
    ],
)
async def test_a_node_that_is_not_for_it_is_not_found(offered: Node) -> None:
    assert Wired(offered).find() == ""


async def test_pods_and_cpu_count_as_well() -> None:
    wired = Wired(node("a", gpus=1))
    wired.ledger.pod_changed(None, pod("p", "a", gpu="1"))
    assert wired.find() == ""
    asks = spot_job({**CPU_CONTAINER, "resources": {"requests": {"cpu": "9"}}})
    assert Wired(node("a")).find(job=asks) == ""
    assert Wired(node("a", room={"cpu": "16"})).find(job=asks) == "a"


async def test_a_node_held_for_a_gang_is_left_alone() -> None:
    wired = Wired(node("a", gpus=1))
    wired.ledger.set_gang_demand({}, ["a"])
    assert wired.find() == ""


async def test_what_is_made_from_a_container_checkpoint_goes_where_containers_are_restored() -> None:
    wired = Wired(node("a", gpus=2), node("b", gpus=1, labels={"holdfast.dev/restore": "true"}))
    assert wired.find(restores=True) == "b"


async def test_what_status_assigns_is_reserved_until_its_pod_has_come() -> None:
    wired = Wired(node("a", gpus=1))
    assigned = with_replicas({**replica(0, "Starting"), "nodeName": "a"})
    wired.job_changed(None, assigned)  # also what an operator before this one has assigned
    assert wired.find(1) == ""
    held = reservation_id(assigned, replica_status(0))
    assert wired.ledger.reservations[held].until_s == float("inf")
    bound = pod("p", "a", gpu="1")
    bound = structs.replace(bound, metadata=structs.replace(bound.metadata, labels={"holdfast.dev/place": held}))
    wired.ledger.pod_changed(None, bound)
    assert held not in wired.ledger.reservations
    wired.job_changed(assigned, assigned)
    assert held not in wired.ledger.reservations


async def test_a_node_that_was_found_is_held_for_good_once_status_names_it() -> None:
    wired = Wired(node("a", gpus=1))
    assert wired.find() == "a"
    held = reservation_id(spot_job(), replica_status(0))
    assert wired.ledger.reservations[held].until_s < float("inf")
    wired.job_changed(None, with_replicas({**replica(0, "Pending"), "nodeName": "a"}))
    assert wired.ledger.reservations[held].until_s == float("inf")


@pytest.mark.parametrize(
    "after",
    [
        with_replicas(replica(0, "Recovering", attempt=1)),
        with_replicas(replica(0, "Stopped")),
        with_replicas({**replica(0), "nodeName": "a"}, phase="Succeeded"),
        None,
    ],
)
async def test_what_status_does_not_assign_any_more_is_free_again(after: SpotInstanceJob | None) -> None:
    wired = Wired(node("a", gpus=1))
    assigned = with_replicas({**replica(0), "nodeName": "a"})
    wired.job_changed(None, assigned)
    wired.job_changed(assigned, after)
    assert dict(wired.ledger.reservations) == {}


async def test_a_job_that_waits_is_queued_when_a_node_has_room() -> None:
    wired = Wired()
    assert wired.find() == ""
    wired.ledger.node_changed(None, node("small", gpus=0))
    await asyncio.sleep(0)
    assert wired.woken == []
    wired.ledger.node_changed(None, node("a", gpus=1))
    wired.ledger.node_changed(None, node("b", gpus=1))
    await asyncio.sleep(0)
    assert wired.woken == [Key("ml", "bert")]
    wired.ledger.node_changed(None, node("c", gpus=1))
    await asyncio.sleep(0)
    assert wired.woken == [Key("ml", "bert")]


async def test_a_job_that_waits_no_more_is_left_alone() -> None:
    wired = Wired()
    wired.find()
    wired.placement.settled(Key("ml", "bert"))
    wired.ledger.node_changed(None, node("a", gpus=1))
    await asyncio.sleep(0)
    assert wired.woken == []


async def test_whether_a_machine_has_room_is_told_with_what_is_missing() -> None:
    wired = Wired(node("m", gpus=1, labels={"holdfast.dev/instance": "uid"}))
    job, first = spot_job(), replica_status(0)
    assert wired.placement.fits_on(job, first, "m")
    wired.ledger.pod_changed(None, pod("p", "m", gpu="1"))
    assert not wired.placement.fits_on(job, first, "m")
    assert list(wired.placement.lacking(job, "m")) == ["nvidia.com/gpu"]
    assert not wired.placement.fits_on(job, first, "gone")
    assert wired.woken == []
    wired.ledger.pod_changed(pod("p", "m", gpu="1"), None)
    assert wired.woken == [Key("ml", "bert")]
    assert wired.placement.fits_on(job, first, "m")
