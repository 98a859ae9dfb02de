"""How an attempt gets its node: a free one, else a machine; one machine at a time, numbered in status."""

from typing import Any

import pytest

from holdfast.api.spotinstancejob_status import ReplicaStatus
from holdfast.scheduling.machine_pools import Resting, ZoneChoice
from holdfast.spotinstancejob.decide.needs import check_nodes, needs_ahead, provide, unmade_machines, waiting_for_node
from tests.spotinstancejob.machines import condition, machine
from tests.spotinstancejob.seen import replica, seen, serving
from tests.trainingjobs import at, node

ZONE = ZoneChoice("us-central1-a")
RESTING = Resting(at(60), "Stockout", "no machine to be had")


def provided(*replicas: Any, **facts: Any) -> ReplicaStatus:
    observed = seen(*replicas, **facts)
    return provide(observed, check_nodes(observed, observed.status)).job_statuses[0]


def test_a_free_node_is_taken_before_a_machine_is_ordered() -> None:
    got = provided(replica(0, "Pending"), free_nodes={0: "own-gpu"}, zones={0: ZONE})
    assert (got.node_name, got.machine, got.machine_try) == ("own-gpu", None, 0)


def test_without_a_free_node_a_machine_is_ordered_and_has_its_number_first() -> None:
    got = provided(replica(0, "Pending", attempt=2), zones={0: ZONE})
    assert (got.machine, got.machine_try, got.phase) == ("bert-r0-2-m0", 1, "Provisioning")


def test_nothing_is_ordered_while_no_zone_has_any() -> None:
    got = provided(replica(0, "Provisioning", machineTry=1), zones={0: RESTING})
    assert (got.machine, got.machine_try, got.phase) == (None, 1, "Pending")
    assert list(needs_ahead(seen(replica(0, "Pending"), zones={0: RESTING}))) == [at(60)]


def test_a_replica_that_was_lost_recovers_until_it_starts() -> None:
    assert provided(replica(0, "Recovering"), zones={0: ZONE}).phase == "Recovering"
    assert provided(replica(0, "Recovering"), zones={0: RESTING}).phase == "Recovering"


ORDERED = replica(0, "Provisioning", machine="bert-r0-0-m0", machineTry=1)


@pytest.mark.parametrize(
    ("found", "node_name", "made"),
    [
        (machine(), None, "bert-r0-0-m0"),
        (machine(phase="Launch", conditions=[condition("Launched", "False", "Insert")]), None, "bert-r0-0-m0"),
        (serving(), "gpu-0", "bert-r0-0-m0"),
        # It ends, and something of it may still be there.
        (machine(phase="End", step="Deleting"), None, "bert-r0-0-m0"),
        (machine(deleted=True), None, "bert-r0-0-m0"),
        # Nothing of it is left: the next one follows.
        (machine(phase="End", step="Gone"), None, "bert-r0-0-m1"),
    ],
)
def test_one_machine_at_a_time_serves_a_need(found: Any, node_name: str | None, made: str) -> None:
    got = provided(ORDERED, machines=(found,), zones={0: ZONE})
    assert (got.node_name, got.machine) == (node_name, made)


def test_after_a_machine_that_ended_a_free_node_is_looked_for_again() -> None:
    got = provided(ORDERED, machines=(machine(phase="End", step="Gone"),), free_nodes={0: "own-gpu"}, zones={0: ZONE})
    assert (got.node_name, got.machine, got.machine_try) == ("own-gpu", None, 1)


@pytest.mark.parametrize(
    "facts",
    [
        {"machines": (serving(conditions=[condition("Preempted", "True", "PreemptionNotice")]),)},
        {"machines": (serving(),), "nodes": (node("gpu-0", taint="holdfast.dev/preempted"),)},
        {"machines": (serving(),), "nodes": (node("gpu-0", ready=False),)},
        {"machines": (serving(),), "nodes": ()},
        {"machines": (serving(),), "capacity_taken_by": {0: "its nvidia.com/gpu was taken by pod ml/other"}},
    ],
)
def test_a_machine_that_is_no_good_any_more_is_not_used_and_no_second_one_is_ordered(facts: Any) -> None:
    got = provided(ORDERED, zones={0: ZONE}, **facts)
    assert (got.node_name, got.machine, got.machine_try) == (None, "bert-r0-0-m0", 1)


@pytest.mark.parametrize(
    "nodes", [(), (node("own-gpu", ready=False),), (node("own-gpu", taint="holdfast.dev/preempted"),)]
)
def test_a_node_that_is_lost_before_the_job_is_made_is_given_up(nodes: Any) -> None:
    waiting = {**replica(0, "Recovering"), "nodeName": "own-gpu"}
    assert provided(waiting, nodes=nodes, zones={0: ZONE}).node_name is None
    assert provided(waiting, nodes=(node("own-gpu"),)).node_name == "own-gpu"


def test_replicas_that_run_or_have_ended_need_nothing() -> None:
    observed = seen(replica(0), replica(1, "Failed"), replica(2, "Stopped"), replica(3, "Starting"), zones={0: ZONE})
    assert list(waiting_for_node(observed.status)) == []
    assert provide(observed, observed.status) == observed.status


def test_a_machine_of_which_status_knows_and_nobody_else_is_made_by_the_next_operator() -> None:
    observed = seen(ORDERED)
    assert [each.machine for each in unmade_machines(observed, observed.status)] == ["bert-r0-0-m0"]
    made = seen(ORDERED, machines=(machine(),))
    assert list(unmade_machines(made, made.status)) == []
