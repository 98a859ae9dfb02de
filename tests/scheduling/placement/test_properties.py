"""What holds whatever happens: the index is a recount, no node is overcommitted, nobody waits behind a lesser one."""

from random import Random
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from holdfast.api.core.objects import Node, Pod
from holdfast.scheduling.constraints import Request, gpus_in, scheduling_class_of
from holdfast.scheduling.free_gpus import FreeGpuIndex
from holdfast.scheduling.ledger import GPU, Ledger
from holdfast.scheduling.node_index import NodeIndex
from holdfast.scheduling.placement import Placement
from holdfast.scheduling.resources import NANO, Amounts, how_many_fit, minus
from holdfast.scheduling.strategies import STRATEGIES
from holdfast.scheduling.strategies.cost_optimized import CHEAP_LABEL, is_cheap
from tests.scheduling.nodes import node, pod
from tests.scheduling.placement.requests import ASSUMED_S, pod_of, request

MACHINES = ("a", "b", "c")
WORKLOADS = tuple(f"w-{number}" for number in range(6))
# One of each sort: with a preference, with a selector, with more than GPUs, without the toleration.
SORTS: tuple[Request, ...] = (
    request("probe", 1),
    request("probe", 1, "costOptimized"),
    request("probe", 1, nodeSelector={"zone": "x"}),
    request("probe", 1, asks={"cpu": "3"}),
    request("probe", 1, tolerations=[]),
)

NODES = st.builds(
    lambda name, gpus, capacity, ready, closed, zone, cheap, taint: node(
        name,
        gpus=gpus,
        capacity=capacity,
        ready=ready,
        labels={"zone": zone, CHEAP_LABEL: cheap},
        unschedulable=closed,
        taints=[{"key": taint, "effect": "NoSchedule"}] if taint else [],
    ),
    st.sampled_from(MACHINES),
    st.sampled_from([None, "0", "2", "4", 8, "-1", "junk", "1500m"]),
    st.sampled_from([{}, {}, {GPU: "4"}, {GPU: "junk"}]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from(["x", "y"]),
    st.sampled_from(["true", "false"]),
    st.sampled_from(["", "", GPU, "team"]),
)
PODS = st.builds(
    lambda name, on, phase, gpu, cpu: pod(name, on, phase=phase, gpu=gpu, cpu=cpu),
    st.sampled_from(("p", "q", "r")),
    st.sampled_from(("", *MACHINES)),
    st.sampled_from(("Pending", "Running", "Succeeded")),
    st.sampled_from(("0", "1", "3", "junk")),
    st.sampled_from(("250m", "4")),
)


class Gone(Struct, frozen=True):
    """A node or a pod of that name is deleted."""

    name: str


class Asked(Struct, frozen=True):
    """A workload joins the line."""

    request: Request


class Step(Struct, frozen=True):
    """Of those who were given a machine one writes it down, has its pod bound there, or withdraws; or a pod ends."""

    which: int
    what: str


class Passes(Struct, frozen=True):
    """Time."""

    seconds: float


class Expected(Struct, frozen=True):
    """Gangs are expected to take so many GPUs there, and machines are kept for them."""

    machine: str
    gpus: int
    kept: bool


Event: TypeAlias = Node | Pod | Gone | Asked | Step | Passes | Expected


def importance(it: Request) -> tuple[int, str, str]:
    return -it.priority, it.since, it.key.name


ASKED = st.builds(
    lambda name, gpus, strategy, priority, age_s, avoided, asks: Asked(
        request(name, gpus, strategy, priority=priority, age_s=age_s, avoided=avoided, asks=asks)
    ),
    st.sampled_from(WORKLOADS),
    st.sampled_from([1, 1, 2, 4]),
    st.sampled_from(sorted(STRATEGIES)),
    st.integers(0, 2),
    st.sampled_from([10, 100]),
    st.sampled_from([(), ("a",)]),
    st.sampled_from([{}, {}, {"cpu": "3"}]),
)
HAPPENING: st.SearchStrategy[list[Event]] = st.lists(
    st.one_of(
        NODES,
        PODS,
        st.builds(Gone, st.sampled_from((*MACHINES, "p", "q", "r"))),
        ASKED,
        ASKED,
        st.builds(Step, st.integers(0, 5), st.sampled_from(["take", "bind", "bind", "end", "leave"])),
        st.builds(Passes, st.sampled_from([1.0, ASSUMED_S, 700.0])),
        st.builds(Expected, st.sampled_from(MACHINES), st.integers(0, 3), st.booleans()),
    ),
    max_size=40,
)
# Something has to be there before much can happen.
EVENTS: st.SearchStrategy[list[Event]] = st.builds(
    lambda nodes, asked, events: [*nodes, *asked, *events],
    st.lists(NODES, min_size=2, max_size=4),
    st.lists(ASKED, max_size=4),
    HAPPENING,
)


class World:
    """A cluster, told to the ledger event by event, and remembered beside it."""

    def __init__(self, seed: int = 0) -> None:
        self.ledger = Ledger()
        self.placement = Placement(
            self.ledger, Random(seed), reservation_timeout_s=ASSUMED_S, starvation_timeout_s=600.0
        )
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.asked: dict[str, Request] = {}
        self.given: dict[str, tuple[Request, str]] = {}
        """What was given away and is not bound: by place."""
        self.until: dict[str, float] = {}
        self.expected: dict[str, Amounts] = {}
        self.kept: frozenset[str] = frozenset()
        self.now_s = 0.0

    def take_in(self, event: Event) -> None:
        match event:
            case Node():
                self.ledger.node_changed(self.nodes.get(event.metadata.name), event)
                self.nodes[event.metadata.name] = event
            case Pod():
                self.set_pod(event)
            case Gone(name) if name in self.nodes:
                self.ledger.node_changed(self.nodes.pop(name), None)
            case Gone(name) if name in self.pods:
                self.ledger.pod_changed(self.pods.pop(name), None)
            case Asked(it) if it.reservation_id not in self.given and f"{it.uid}-pod" not in self.pods:
                self.asked[it.uid] = it
                self.placement.enqueue(it, self.now_s)
            case Step(which, what):
                self.step(which, what)
            case Passes(seconds):
                self.now_s += seconds
                self.ledger.expire(self.now_s)
                for place in [place for place, until in self.until.items() if until <= self.now_s]:
                    del self.given[place], self.until[place]
            case Expected(name, gpus, kept):
                self.expected = {name: {GPU: gpus * NANO}}
                self.kept = frozenset({name} if kept else ())
                self.ledger.set_gang_demand(self.expected, self.kept)

    def step(self, which: int, what: str) -> None:
        if what == "end":
            bound = sorted(name for name in self.pods if name.endswith("-pod"))
            if bound:
                self.ledger.pod_changed(self.pods.pop(bound[which % len(bound)]), None)
            return
        if not self.given:
            return
        place = sorted(self.given)[which % len(self.given)]
        it, machine = self.given[place]
        if what == "leave":
            self.placement.leave(it.uid)
        elif place not in self.until:
            self.placement.confirm(it, machine, self.now_s)
            self.until[place] = self.now_s + ASSUMED_S
        if what != "take":
            del self.given[place]
            self.until.pop(place, None)
        if what == "bind":
            self.set_pod(pod_of(it, machine))
            self.placement.leave(it.uid)

    def set_pod(self, new: Pod) -> None:
        self.ledger.pod_changed(self.pods.get(new.metadata.name), new)
        self.pods[new.metadata.name] = new

    def look(self) -> list[Request]:
        found = self.placement.run_pass(self.now_s).assigned
        for it in found:
            del self.asked[it.uid]
            machine = self.placement.offered_node(it.uid)
            assert machine is not None
            self.given[it.reservation_id] = (it, machine)
        return found

    def left(self, name: str) -> Amounts:
        """Counted anew: a fresh ledger that sees every pod, less what was given and what is expected."""
        counted = Ledger()
        counted.node_changed(None, self.nodes[name])
        for each in self.pods.values():
            counted.pod_changed(None, each)
        left = counted.free(name)
        for it, machine in self.given.values():
            left = minus(left, it.shape.requests) if machine == name else left
        return minus(left, self.expected.get(name, {}))

    def fitting(self, it: Request) -> dict[str, int]:
        """A scan of all machines: those that it may enter with room for all that it asks, by free GPUs."""
        return {
            name: free for name, free in self.open_to(it).items() if how_many_fit(it.shape.requests, self.left(name))
        }

    def open_to(self, it: Request) -> dict[str, int]:
        """Those that it may enter and that are kept for nobody, by free GPUs."""
        found = {}
        for name in self.nodes:
            machine = self.ledger.nodes[name]
            if it.shape.matches(machine) and it.shape.can_run_on(machine) and name not in self.kept:
                found[name] = gpus_in(self.left(name))
        return found

    def sizes(self, it: Request, *, open_only: bool) -> list[int]:
        """The GPUs of each machine that is large enough for all else that it asks for."""
        machines = (self.ledger.nodes[name] for name in self.nodes)
        wanted = (each for each in machines if it.shape.matches(each) and (it.shape.can_run_on(each) or not open_only))
        return [gpus_in(each.offered) for each in wanted if how_many_fit(it.other_requests, each.offered)]


def contents(shelf: FreeGpuIndex, names: tuple[str, ...] = MACHINES) -> dict[str, int]:
    return {name: shelf.free(name) for name in names if shelf.free(name)}


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_the_index_is_a_recount_after_any_events(events: list[Event]) -> None:
    world = World()
    indexes = [NodeIndex(scheduling_class_of(each), world.ledger) for each in SORTS]
    for index in indexes:
        world.ledger.listeners.append(index.refresh)
    for event in events:
        world.take_in(event)
        world.look()
        for it, index in zip(SORTS, indexes, strict=True):
            found = world.open_to(it)
            cheap = {name for name in found if it.strategy == "costOptimized" and is_cheap(world.ledger.nodes[name])}
            assert contents(index.preferred) == {name: found[name] for name in cheap if found[name]}
            assert contents(index.others) == {name: free for name, free in found.items() if free and name not in cheap}
            roomy = [gpus_in(world.left(name)) for name in found if how_many_fit(it.other_requests, world.left(name))]
            assert index.most_free(it) == max(roomy, default=0)
            assert index.largest_schedulable(it) == max(world.sizes(it, open_only=True), default=0)
            assert index.largest(it) == max(world.sizes(it, open_only=False), default=0)


@settings(max_examples=150, deadline=None)
@given(EVENTS, st.integers(0, 3))
def test_nothing_is_given_that_is_not_there(events: list[Event], seed: int) -> None:
    world = World(seed)
    for event in events:
        world.take_in(event)
        before = {name: world.left(name) for name in world.nodes}
        for it in world.look():
            machine = world.given[it.reservation_id][1]
            left = before[machine] = minus(before[machine], it.shape.requests)
            assert min(left.get(name, 0) for name in it.shape.requests) >= 0
            assert it.shape.can_run_on(world.ledger.nodes[machine])


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_after_a_pass_no_workload_waits_that_fits(events: list[Event]) -> None:
    """No patience runs out here: what is kept for one is kept from those behind it only, which is tried apart."""
    world = World()
    for event in events:
        if isinstance(event, Passes) and event.seconds > ASSUMED_S:
            continue
        world.take_in(event)
        world.look()
        world.now_s = min(world.now_s, 500.0)
        assert [it.uid for it in world.asked.values() if world.fitting(it)] == []


@settings(max_examples=150, deadline=None)
@given(st.lists(ASKED, max_size=8), st.lists(NODES, max_size=3), st.booleans())
def test_no_less_important_workload_gets_a_node_that_a_more_important_one_could_have_had(
    line: list[Asked], nodes: list[Node], late: bool
) -> None:
    world = World()
    events: list[Event] = [*nodes, *line]
    for each in events:
        world.take_in(each)
    world.now_s = 700.0 if late else 0.0
    start = {it.uid: world.fitting(it) for it in world.asked.values()}
    waiting = dict(world.asked)
    given = world.look()
    assert given == sorted(given, key=importance)
    room = {name: world.left(name) for name in world.nodes}
    for it in reversed(given):
        machine = world.given[it.reservation_id][1]
        room[machine] = {name: room[machine].get(name, 0) + it.shape.requests.get(name, 0) for name in room[machine]}
        # As it was when its turn came: those before it who were passed over found no room then.
        for other in waiting.values():
            if other not in given and importance(other) < importance(it):
                assert not any(how_many_fit(other.shape.requests, room[name]) for name in start[other.uid])


@settings(max_examples=100, deadline=None)
@given(EVENTS)
def test_each_choice_is_what_its_strategy_says_of_a_scan(events: list[Event]) -> None:
    world = World()
    for event in events:
        world.take_in(event)
        for uid, it in sorted(world.asked.items()):
            alone = World()
            there: list[Event] = [*world.nodes.values(), *world.pods.values()]
            for each in there:
                alone.take_in(each)
            alone.take_in(Asked(it))
            found = alone.fitting(it)
            alone.look()
            open_ = {name: free for name, free in found.items() if name not in it.avoided} or found
            if it.strategy == "costOptimized":
                cheap = {name: free for name, free in open_.items() if is_cheap(alone.ledger.nodes[name])}
                open_ = cheap or open_
            chosen = alone.placement.offered_node(uid)
            if it.strategy == "random" or not open_:
                assert (chosen in open_) if open_ else chosen is None
            else:
                assert chosen == min(open_, key=lambda name: (-open_[name], name))
