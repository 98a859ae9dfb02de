"""Logs of spot machines, and which machine stands for which node of a log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.local.trace import Fleet, InvalidTrace, TraceEvent, parse_trace


def test_a_log_is_read_in_the_order_of_time() -> None:
    text = "480000,add,node1\n\n 540500 , remove , node1 \n0,add,node2\n"
    assert parse_trace(text) == (
        TraceEvent(0.0, "add", "node2"),
        TraceEvent(480.0, "add", "node1"),
        TraceEvent(540.5, "remove", "node1"),
    )


def test_a_node_that_is_removed_before_it_is_added_was_there_from_the_beginning() -> None:
    assert parse_trace("5000,remove,node1\n9000,add,node1")[:2] == (
        TraceEvent(0.0, "add", "node1"),
        TraceEvent(5.0, "remove", "node1"),
    )


@pytest.mark.parametrize(
    "line", ["1,add", "soon,add,node1", "-1,add,node1", "1,lose,node1", "1,add,", "1;add;n", "²,add,n"]
)
def test_a_line_that_is_none_is_named_by_its_number(line: str) -> None:
    with pytest.raises(InvalidTrace, match=r"line 2 is .*: write milliseconds,add,node"):
        parse_trace(f"0,add,node0\n{line}\n")


def test_a_machine_takes_the_node_that_can_be_had_for_longest_and_is_taken_back_with_it() -> None:
    fleet = Fleet()
    assert not fleet.take("early")
    for node in ("node1", "node2"):
        assert fleet.apply(TraceEvent(0.0, "add", node)) == ""
    assert fleet.take("first")
    assert fleet.take("second")
    assert not fleet.take("third")
    assert fleet.take("first"), "it has its node already"
    assert fleet.apply(TraceEvent(1.0, "remove", "node1")) == "first"
    assert fleet.apply(TraceEvent(1.0, "remove", "node1")) == ""
    assert fleet.machines == {"node2": "second"}


def test_the_node_of_a_machine_that_is_gone_can_be_had_again() -> None:
    fleet = Fleet()
    fleet.apply(TraceEvent(0.0, "add", "node1"))
    fleet.take("first")
    fleet.release("first")
    assert fleet.take("second")


def test_machines_of_an_earlier_run_stand_for_the_next_nodes() -> None:
    fleet = Fleet(["old", "gone", "older"])
    fleet.release("gone")
    for number in range(3):
        fleet.apply(TraceEvent(0.0, "add", f"node{number}"))
    assert fleet.machines == {"node0": "old", "node1": "older"}
    assert fleet.take("new")


EVENTS = st.lists(st.tuples(st.sampled_from(["add", "remove", "take", "release"]), st.integers(0, 4)), max_size=40)


@given(EVENTS)
def test_no_two_machines_stand_for_one_node_and_no_machine_for_two(steps: list[tuple[str, int]]) -> None:
    fleet, there = Fleet(), set()
    for step, number in steps:
        node, machine = f"node{number}", f"m{number}"
        if step == "add":
            fleet.apply(TraceEvent(0.0, "add", node))
            there.add(node)
        elif step == "remove":
            fleet.apply(TraceEvent(0.0, "remove", node))
            there.discard(node)
        elif step == "take":
            held = fleet.machines
            assert fleet.take(machine) == (machine in held.values() or len(held) < len(there))
        else:
            fleet.release(machine)
        assert set(fleet.machines) <= there
        assert len(set(fleet.machines.values())) == len(fleet.machines)
