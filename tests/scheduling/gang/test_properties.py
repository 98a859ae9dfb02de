"""What holds for every cluster and every line."""

from datetime import timedelta
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.core.objects import Node
from holdfast.scheduling.constraints import PodRequirements
from holdfast.scheduling.gang import ADMITTED, Gang, GangState, admit, run_admission
from holdfast.scheduling.ledger import GPU
from holdfast.scheduling.resources import NANO, Amounts, minus
from tests.scheduling.gang.gangs import NOW, admitted, apart, gang, shape
from tests.scheduling.nodes import ledger, node, pod

HOST = "kubernetes.io/hostname"
SHAPES = (
    shape(1),
    shape(2),
    shape(1, asks={"cpu": "3"}),
    shape(asks={"cpu": "4"}),
    shape(1, nodeSelector={"zone": "a"}),
    shape(1, affinity=apart(HOST)),
    shape(1, affinity=apart("zone")),
    shape(1, affinity=apart(HOST, "zone")),
)

FACTS = st.tuples(
    st.integers(0, 4),
    st.sampled_from(["a", "b", ""]),
    st.sampled_from([{}, {}, {}, {"unschedulable": True}, {"ready": False}]),
)


def made(facts: list[tuple[int, str, dict[str, Any]]]) -> list[Node]:
    return [
        node(f"n-{number}", gpus=gpus, labels={"zone": zone} if zone else {}, room={"pods": "4"}, **flags)
        for number, (gpus, zone, flags) in enumerate(facts)
    ]


MACHINES = st.lists(FACTS, max_size=4).map(made)
STANDINGS: tuple[GangState, ...] = ("waiting", "waiting", "keeping", "started")


@st.composite
def gangs(draw: st.DrawFn, most: int = 5) -> list[Gang]:
    count = draw(st.integers(0, most))
    line = []
    for number in range(count):
        workers = draw(st.integers(1, 4))
        line.append(
            gang(
                f"job-{number}",
                workers,
                each=draw(st.sampled_from(SHAPES)),
                priority=draw(st.sampled_from([0, 0, 10])),
                age_s=draw(st.sampled_from([0, 60, 3600])),
                standing=(standing := draw(st.sampled_from(STANDINGS))),
                unbound=draw(st.integers(0, workers)) if standing == "started" else 0,
            )
        )
    return line


def packable(gangs: list[Gang], nodes: list[Node]) -> bool:
    """Whether there is a way to place all workers of all of them: every way is tried."""
    kept = ledger(*nodes)
    workers = [(each.uid, each.shape) for each in gangs for _ in range(each.workers)]

    def place(
        rest: list[tuple[str, PodRequirements]], free: dict[str, Amounts], used: frozenset[tuple[str, str, str]]
    ) -> bool:
        if not rest:
            return True
        (uid, worker), *others = rest
        for machine in kept.nodes.values():
            if not (worker.matches(machine) and worker.can_run_on(machine)):
                continue
            domains = {(uid, *domain) for domain in worker.domains(machine)}
            left = minus(free[machine.name], worker.requests)
            fits = min(left.values()) >= 0 and used.isdisjoint(domains)
            if fits and place(others, {**free, machine.name: left}, used | domains):
                return True
        return False

    return place(workers, {name: kept.free(name) for name in kept.nodes}, frozenset())


@given(MACHINES, st.sampled_from(SHAPES), st.integers(1, 4))
def test_one_alone_is_admitted_exactly_when_there_is_a_way_to_place_it(
    nodes: list[Node], each: PodRequirements, workers: int
) -> None:
    it = gang(workers=workers, each=each)
    assert (admitted([it], ledger(*nodes)) == {"bert"}) is packable([it], nodes)


@given(MACHINES, gangs(3))
def test_all_admitted_gangs_fit_together(nodes: list[Node], line: list[Gang]) -> None:
    waiting = [structs.replace(each, state="waiting", unbound=0) for each in line]
    allowed = admitted(waiting, ledger(*nodes))
    assert packable([each for each in waiting if each.uid in allowed], nodes)


@given(MACHINES, gangs(1), gangs(2))
def test_an_admitted_gang_fits_beside_the_workers_of_started_gangs(
    nodes: list[Node], started: list[Gang], line: list[Gang]
) -> None:
    """As far as there is room for those at all."""
    before = [structs.replace(each, state="started", unbound=each.workers) for each in started]
    waiting = [structs.replace(each, uid=f"new-{each.uid}", state="waiting", unbound=0) for each in line]
    allowed = admitted([*waiting, *before], ledger(*nodes))
    if packable(before, nodes):
        assert packable([*before, *(each for each in waiting if each.uid in allowed)], nodes)


@given(MACHINES, gangs(), st.randoms())
def test_the_order_in_which_jobs_are_listed_does_not_matter(
    nodes: list[Node], line: list[Gang], random: Random
) -> None:
    waiting = [each for each in line if each.state != "started"]
    shuffled = list(waiting)
    random.shuffle(shuffled)
    assert admit(shuffled, ledger(*nodes), NOW) == admit(waiting, ledger(*nodes), NOW)


@given(MACHINES, st.sampled_from(SHAPES), st.integers(1, 4), FACTS)
def test_more_capacity_takes_nothing_from_the_first_in_the_queue(
    nodes: list[Node], each: PodRequirements, workers: int, more: tuple[int, str, dict[str, Any]]
) -> None:
    it = gang(workers=workers, each=each)
    (machine,) = made([more])
    larger = [*nodes, structs.replace(machine, metadata=structs.replace(machine.metadata, name="more"))]
    if admitted([it], ledger(*nodes)):
        assert admitted([it], ledger(*larger))


@given(MACHINES, gangs(), gangs(2))
def test_a_gang_further_back_takes_nothing_from_one_ahead(
    nodes: list[Node], line: list[Gang], more: list[Gang]
) -> None:
    """Neither a place nor a word: verdicts on those ahead are what they would be without the others."""
    behind = [structs.replace(each, uid=f"late-{each.uid}", priority=-1, state="waiting", unbound=0) for each in more]
    alone = admit(line, ledger(*nodes), NOW)
    together = admit([*behind, *line], ledger(*nodes), NOW)
    assert {uid: together[uid] for uid in alone} == alone


@given(MACHINES, gangs(), st.sampled_from(SHAPES), st.integers(1, 3))
def test_the_capacity_of_a_gang_that_restarts_is_never_given_to_its_equals(
    nodes: list[Node], line: list[Gang], each: PodRequirements, workers: int
) -> None:
    """If it fits now, it would also have fitted with everyone else there."""
    waiting = [structs.replace(it, state="waiting", unbound=0, priority=0) for it in line]
    restarting = gang("restarting", workers, each=each, standing="keeping", restarting_s=1)
    kept = ledger(*nodes)
    if "restarting" in admitted([restarting], kept):
        assert "restarting" in admitted([restarting, *waiting], kept)
        return
    # It does not fit: nobody gets a machine that it could use.
    useful = {m.name for m in kept.nodes.values() if restarting.shape.matches(m) and restarting.shape.can_run_on(m)}
    elsewhere = ledger(*(n for n in nodes if n.metadata.name not in useful or not _large_enough(n, restarting)))
    assert admitted([restarting, *waiting], kept) - {"restarting"} == admitted(waiting, elsewhere)


def _large_enough(it: Node, who: Gang) -> bool:
    offered = ledger(it).nodes[it.metadata.name].offered
    return all(offered.get(name, 0) >= amount for name, amount in who.shape.requests.items())


@given(MACHINES, gangs())
def test_a_gang_that_is_not_admitted_gets_the_reason_and_a_position_in_the_queue(
    nodes: list[Node], line: list[Gang]
) -> None:
    verdicts = admit(line, ledger(*nodes), NOW, 600)
    refused = [each for each in verdicts.values() if not each.admitted]
    assert all(each.message for each in refused)
    assert sorted(each.position for each in refused) == list(range(1, len(refused) + 1))
    assert all(each == ADMITTED for each in verdicts.values() if each.admitted)


@given(MACHINES, gangs())
def test_with_time_the_first_gang_loses_nothing(nodes: list[Node], line: list[Gang]) -> None:
    waiting = sorted((structs.replace(each, state="waiting", unbound=0) for each in line), key=lambda it: it.rank)
    if waiting:
        first = waiting[0].uid
        now, later = (admit(waiting, ledger(*nodes), when, 600) for when in (NOW, NOW + timedelta(days=1)))
        assert now[first] == later[first]


@given(MACHINES, gangs(), st.integers(1, 3))
def test_a_job_without_gpus_is_never_held_by_jobs_that_lack_gpus(
    nodes: list[Node], line: list[Gang], workers: int
) -> None:
    large = [
        structs.replace(each, state="waiting", unbound=0, workers=each.workers + 16)
        for each in line
        if GPU in each.shape.requests
    ]
    small = gang("small", workers, each=shape(asks={"cpu": "1"}), age_s=0)
    assert not admitted(large, ledger(*nodes))
    assert admitted([*large, small], ledger(*nodes)) == admitted([small], ledger(*nodes))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 3))
def test_a_large_job_starts_when_those_that_run_have_ended_whatever_else_comes(
    gpus: list[int], each: int, workers: int
) -> None:
    """Every round another job of one GPU and one without come, and one that runs ends."""
    nodes = [node(f"n-{number}", gpus=count, room={"cpu": "4", "pods": "20"}) for number, count in enumerate(gpus)]
    large = gang("large", workers, each=shape(each, asks={"cpu": "2"}), age_s=3600)
    if not packable([large], nodes):
        return
    running = [f"n-{number}" for number, count in enumerate(gpus) for _ in range(count)]
    bound = [(name, {"gpu": "1"}) for name in running]
    for turn in range(200):
        now = ledger(*nodes, *(pod(f"p-{number}", name, **asks) for number, (name, asks) in enumerate(bound)))
        line = [large, gang("gpu", each=shape(1), age_s=0), gang("cpu", each=shape(asks={"cpu": "1"}), age_s=0)]
        outlook = run_admission(line, now, NOW)
        if outlook.decisions["large"].admitted:
            return
        for name, taken in outlook.demand.items():
            bound.append((name, {"gpu": str(taken.get(GPU, 0) // NANO), "cpu": str(taken.get("cpu", 0) // NANO)}))
        if bound and turn % 2:
            bound.pop(0)
    raise AssertionError("the large job never starts")


def test_the_ways_that_are_tried_find_one_and_find_none() -> None:
    """The measure itself can tell."""
    two = [node("a", gpus=1), node("b", gpus=1)]
    assert packable([gang(workers=2, gpus=1)], two)
    assert not packable([gang(workers=3, gpus=1)], two)
    assert not packable([gang("a", gpus=1), gang("b", 2, gpus=1)], two)
    assert not packable([gang(workers=2, each=shape(1, affinity=apart(HOST)))], [node("a", gpus=2)])
    assert packable([gang(each=shape(1, affinity=apart(HOST))), gang("b", gpus=1)], [node("a", gpus=2)])
