from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.core.objects import Pod
from holdfast.local.controllers.node_snapshot import NodeSnapshot, waits
from holdfast.scheduling.resources import NANO
from tests.local.controllers.things import asking, pod


def on(it: Pod, machine: str) -> Pod:
    return structs.replace(it, spec=structs.replace(it.spec, node_name=machine))


def in_phase(it: Pod, phase: str) -> Pod:
    return structs.replace(it, status=structs.replace(it.status, phase=phase))


def cpus(occupancy: NodeSnapshot, machine: str = "m") -> int:
    return occupancy.taken(machine).get("cpu", 0) // NANO


POD = pod("p", **asking(cpu="2"))


def test_an_assumed_pod_takes_its_capacity_once_before_and_after_the_cache_shows_it() -> None:
    occupancy = NodeSnapshot()
    occupancy.pod_changed(None, POD)
    assert occupancy.waiting() == [POD]
    occupancy.assume(on(POD, "m"))
    assert (cpus(occupancy), occupancy.waiting()) == (2, [])
    touched = in_phase(POD, "Pending")
    occupancy.pod_changed(POD, touched)
    assert (cpus(occupancy), occupancy.waiting()) == (2, []), "the cache is behind"
    occupancy.pod_changed(touched, on(POD, "m"))
    assert cpus(occupancy) == 2
    occupancy.pod_changed(on(POD, "m"), in_phase(on(POD, "m"), "Succeeded"))
    assert cpus(occupancy) == 0


def test_a_binding_that_failed_gives_the_capacity_back_and_the_pod_its_position_in_the_queue() -> None:
    occupancy = NodeSnapshot()
    occupancy.pod_changed(None, POD)
    occupancy.pod_changed(None, pod("q"))
    occupancy.assume(on(POD, "m"))
    occupancy.dirty = False
    occupancy.forget(on(POD, "m"))
    assert cpus(occupancy) == 0
    assert [each.metadata.name for each in occupancy.waiting()] == ["p", "q"]
    assert occupancy.dirty


def test_an_assumed_pod_that_is_deleted_or_replaced_leaves() -> None:
    for after in (None, structs.replace(POD, metadata=structs.replace(POD.metadata, uid="another"))):
        occupancy = NodeSnapshot()
        occupancy.pod_changed(None, POD)
        occupancy.assume(on(POD, "m"))
        occupancy.pod_changed(POD, after)
        assert cpus(occupancy) == 0
        assert occupancy.waiting() == ([after] if after else [])


def test_a_pod_that_is_put_elsewhere_by_somebody_else_is_there() -> None:
    occupancy = NodeSnapshot()
    occupancy.pod_changed(None, POD)
    occupancy.assume(on(POD, "m"))
    occupancy.pod_changed(POD, on(POD, "n"))
    assert (cpus(occupancy, "m"), cpus(occupancy, "n")) == (0, 2)


def stopping(it: Pod) -> Pod:
    return structs.replace(it, metadata=structs.replace(it.metadata, deletion_timestamp="now"))


@pytest.mark.parametrize(
    ("old", "new", "dirty"),
    [
        (None, POD, True),
        (POD, None, True),
        (on(POD, "m"), in_phase(on(POD, "m"), "Running"), False),
        (in_phase(on(POD, "m"), "Running"), in_phase(on(POD, "m"), "Failed"), True),
        (on(POD, "m"), None, True),
        (on(POD, "m"), stopping(on(POD, "m")), True),
        (on(POD, "m"), structs.replace(on(POD, "m"), metadata=pod("p", labels={"a": "b"}).metadata), True),
    ],
)
def test_only_events_that_may_let_a_pod_fit_make_the_snapshot_dirty(
    old: Pod | None, new: Pod | None, dirty: bool
) -> None:
    occupancy = NodeSnapshot()
    occupancy.pod_changed(None, old)
    occupancy.dirty = False
    occupancy.pod_changed(old, new)
    assert occupancy.dirty is dirty


@pytest.mark.parametrize(
    ("it", "expected"),
    [
        (POD, True),
        (on(POD, "m"), False),
        (in_phase(POD, "Failed"), False),
        (stopping(POD), False),
        (pod("p", schedulingGates=[{"name": "g"}]), False),
        (pod("p", schedulerName="another"), False),
    ],
)
def test_a_pod_waits_for_a_machine(it: Pod, expected: bool) -> None:
    assert waits(it) is expected


class Step(NamedTuple):
    name: str
    machine: str
    phase: str
    is_there: bool


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(["p", "q", "r"]),
        st.sampled_from(["", "m", "n"]),
        st.sampled_from(["Pending", "Running", "Failed"]),
        st.booleans(),
    )
)


@given(STEPS)
def test_after_any_history_the_sums_are_those_of_what_is_there(steps: list[Step]) -> None:
    occupancy, there = NodeSnapshot(), dict[str, Pod]()
    for step in steps:
        new = in_phase(pod(step.name, node=step.machine, **asking(cpu="3")), step.phase) if step.is_there else None
        occupancy.pod_changed(there.pop(step.name, None), new)
        if new is not None:
            there[step.name] = new
    for machine in ("m", "n"):
        here = [each for each in there.values() if each.spec.node_name == machine and not each.is_finished]
        assert cpus(occupancy, machine) == 3 * len(here)
        assert {each.metadata.name for each in occupancy.on(machine)} == {each.metadata.name for each in here}
    assert {each.metadata.name for each in occupancy.waiting()} == {n for n, each in there.items() if waits(each)}
