"""Pods that wait and machines in, who goes where out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.core.objects import Node, Pod
from holdfast.cluster.protocol import JSON
from holdfast.local.controllers.node_snapshot import NodeSnapshot
from holdfast.local.controllers.scheduler import schedule
from holdfast.scheduling.resources import NANO, parse_nanos
from tests.local.controllers.things import asking, node, pod

HOST = "kubernetes.io/hostname"
ZONE = "zone"


def go(
    waiting: list[Pod], machines: list[Node], there: list[Pod] | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """Where each pod goes; and why each other one does not."""
    occupancy = NodeSnapshot()
    for each in there or []:
        occupancy.pod_changed(None, each)
    outcome = schedule(waiting, {machine.metadata.name: machine for machine in machines}, occupancy)
    placed = {each.metadata.name: each.spec.node_name for each in outcome.placed}
    return placed, {each.metadata.name: why for each, why in outcome.refused}


def gpus(count: int) -> JSON:
    return asking(nvidia__gpu=str(count))


def gpu_node(name: str, count: int, **labels: str) -> Node:
    return node(name, room={"nvidia/gpu": str(count)}, labels=labels)


def test_the_most_important_goes_first_then_the_one_that_waits_longest_then_the_first_in_line() -> None:
    def waiting(name: str, priority: int, made: str) -> Pod:
        it = pod(name, priority=priority, **gpus(1))
        return structs.replace(it, metadata=structs.replace(it.metadata, creation_timestamp=made))

    line = [waiting("c", 0, "2"), waiting("b", 0, "2"), waiting("old", 0, "1"), waiting("high", 9, "3")]
    for room in range(5):
        placed, refused = go(line, [gpu_node("m", room)])
        assert list(placed) == ["high", "old", "c", "b"][:room]
        assert list(refused) == ["high", "old", "c", "b"][room:]


def test_one_pass_never_gives_the_same_capacity_twice() -> None:
    placed, refused = go([pod(name, **gpus(1)) for name in "abcde"], [gpu_node("m", 2), gpu_node("n", 2)])
    assert sorted(placed.values()) == ["m", "m", "n", "n"]
    assert refused == {"e": "0/2 nodes are available: 2 Insufficient nvidia/gpu."}


def test_the_message_counts_each_obstacle() -> None:
    tainted = {"key": "k", "value": "v", "effect": "NoSchedule"}
    machines = [gpu_node("a", 0), gpu_node("b", 0), node("c", taints=[tainted]), node("d", unschedulable=True)]
    _, refused = go([pod("p", **gpus(1))], machines)
    assert refused["p"] == (
        "0/4 nodes are available: 1 node(s) had untolerated taint {k: v}, 1 node(s) were unschedulable, "
        "2 Insufficient nvidia/gpu."
    )


def test_without_machines_that_is_the_message() -> None:
    assert go([pod("p")], [])[1] == {"p": "no nodes available to schedule pods"}


def test_a_pod_that_has_ended_takes_no_capacity_and_one_that_is_stopping_does() -> None:
    holder = pod("holder", node="m", **gpus(1))
    ended = structs.replace(holder, status=structs.replace(holder.status, phase="Failed"))
    stopping = structs.replace(holder, metadata=structs.replace(holder.metadata, deletion_timestamp="now"))
    for there, fits in ((holder, False), (ended, True), (stopping, False)):
        assert bool(go([pod("p", **gpus(1))], [gpu_node("m", 1)], [there])[0]) is fits


@pytest.mark.parametrize(
    ("spec", "machines", "chosen"),
    [
        (asking(cpu="1"), [node("a", room={"cpu": "2"}), node("b", room={"cpu": "8"})], "b"),
        ({}, [node("b"), node("a")], "b"),
        ({}, [node("a", taints=[{"key": "k", "effect": "PreferNoSchedule"}]), node("b")], "b"),
        (
            {
                "affinity": {
                    "nodeAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {
                                "weight": 10,
                                "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]},
                            }
                        ]
                    }
                }
            },
            [node("a"), node("b", labels={"disk": "fast"})],
            "b",
        ),
    ],
)
def test_the_best_of_several_is_chosen(spec: JSON, machines: list[Node], chosen: str) -> None:
    assert go([pod("p", **spec)], machines)[0] == {"p": chosen}


def test_pods_that_ask_for_nothing_are_spread() -> None:
    placed, _ = go([pod(name) for name in "abcd"], [node("m"), node("n")])
    assert sorted(placed.values()) == ["m", "m", "n", "n"]


def term(key: str, app: str, **more: object) -> JSON:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **more}


def affinity(kind: str, *terms: JSON) -> JSON:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


APP = {"app": "x"}
AWAY = affinity("podAntiAffinity", term(HOST, "x"))
NEAR = affinity("podAffinity", term(ZONE, "x"))


def test_pods_that_avoid_each_other_part() -> None:
    waiting = [pod(name, labels=APP, **AWAY) for name in "abc"]
    placed, refused = go(waiting, [node("m"), node("n")])
    assert set(placed.values()) == {"m", "n"}
    assert refused == {"c": "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules."}


def test_a_pod_with_anti_affinity_keeps_others_off_its_node() -> None:
    hermit = pod("hermit", node="m", **AWAY)
    placed, refused = go([pod("p", labels=APP)], [node("m")], [hermit])
    assert refused == {"p": "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules."}
    placed, _ = go([pod("p", labels=APP), pod("q")], [node("m"), node("n")], [hermit])
    assert placed["p"] == "n"


def test_pods_that_belong_together_share_a_zone() -> None:
    machines = [node("a1", labels={ZONE: "a"}), node("b1", labels={ZONE: "b"}), node("nowhere")]
    there = [pod("first", labels=APP, node="b1")]
    assert go([pod("p", **NEAR)], machines, there)[0] == {"p": "b1"}
    _, refused = go([pod("p", **NEAR)], machines)
    assert refused == {"p": "0/3 nodes are available: 3 node(s) didn't match pod affinity rules."}


def test_the_first_of_a_group_does_not_wait_for_the_others() -> None:
    machines = [node("a1", labels={ZONE: "a"}), node("b1", labels={ZONE: "b"}), node("nowhere")]
    placed, refused = go([pod(name, labels=APP, **NEAR) for name in "pqr"], machines)
    assert refused == {}
    assert len(set(placed.values())) == 1
    assert "nowhere" not in placed.values()


@pytest.mark.parametrize(
    ("more", "is_seen"),
    [
        ({}, False),
        ({"namespaces": ["other"]}, True),
        ({"namespaces": ["third"]}, False),
        ({"namespaceSelector": {}}, True),
    ],
)
def test_a_term_speaks_of_its_own_namespace_unless_it_says_otherwise(more: JSON, is_seen: bool) -> None:
    away = affinity("podAntiAffinity", term(HOST, "x", **more))
    placed, _ = go([pod("p", **away)], [node("m")], [pod("q", namespace="other", labels=APP, node="m")])
    assert bool(placed) is not is_seen


@pytest.mark.parametrize(("kind", "chosen"), [("podAffinity", "b"), ("podAntiAffinity", "a")])
def test_preferences_about_neighbours_decide_between_nodes(kind: str, chosen: str) -> None:
    wish = {"weight": 5, "podAffinityTerm": term(HOST, "x")}
    wishes: JSON = {"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}}
    there = [pod("q", labels=APP, node="b"), pod("r", node="a"), pod("s", node="a"), pod("t", node="b")]
    assert go([pod("p", **wishes)], [node("a"), node("b")], there)[0] == {"p": chosen}


def spread(skew: int, when: str = "DoNotSchedule") -> JSON:
    constraint = {
        "maxSkew": skew,
        "topologyKey": ZONE,
        "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": APP},
    }
    return {"topologySpreadConstraints": [constraint]}


def test_pods_are_spread_evenly_over_zones() -> None:
    machines = [node(f"{zone}1", labels={ZONE: zone}) for zone in "abc"]
    placed, refused = go([pod(str(number), labels=APP, **spread(1)) for number in range(6)], machines)
    assert sorted(placed.values()) == ["a1", "a1", "b1", "b1", "c1", "c1"]
    assert refused == {}


def test_an_uneven_zone_is_refused_where_the_constraint_is_hard() -> None:
    machines = [node("a1", labels={ZONE: "a"}), node("b1", labels={ZONE: "b"}, room={"pods": "0"}), node("c1")]
    there = [pod("q", labels=APP, node="a1")]
    _, refused = go([pod("p", labels=APP, **spread(1))], machines, there)
    assert refused["p"] == (
        "0/3 nodes are available: 1 Too many pods, 1 node(s) didn't match pod topology spread constraints, "
        "1 node(s) didn't match pod topology spread constraints (missing required label)."
    )
    for soft in (spread(2), spread(1, "ScheduleAnyway")):
        assert go([pod("p", labels=APP, **soft)], machines, there)[0]


def test_a_zone_that_a_pod_can_not_choose_does_not_count() -> None:
    machines = [node("a1", labels={ZONE: "a", "disk": "fast"}), node("b1", labels={ZONE: "b"})]
    there = [pod("q", labels=APP, node="a1")]
    picky = pod("p", labels=APP, nodeSelector={"disk": "fast"}, **spread(1))
    assert go([picky], machines, there)[0] == {"p": "a1"}


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=12),
)
@settings(deadline=None)
def test_no_node_is_overfull_and_no_pod_waits_that_would_fit(rooms: list[int], asked: list[tuple[int, int]]) -> None:
    machines = [gpu_node(f"m-{number}", room) for number, room in enumerate(rooms)]
    waiting = [pod(f"p-{number}", priority=rank, **gpus(count)) for number, (count, rank) in enumerate(asked)]
    occupancy = NodeSnapshot()
    outcome = schedule(waiting, {machine.metadata.name: machine for machine in machines}, occupancy)
    free = {}
    for machine, room in zip(machines, rooms, strict=True):
        taken = occupancy.taken(machine.metadata.name).get("nvidia/gpu", 0)
        free[machine.metadata.name] = room * NANO - taken
    assert all(left >= 0 for left in free.values())
    for each, _ in outcome.refused:
        wanted = parse_nanos(each.spec.containers[0].resources.requests["nvidia/gpu"])
        assert wanted > max(free.values())
    assert len(outcome.placed) + len(outcome.refused) == len(waiting)
