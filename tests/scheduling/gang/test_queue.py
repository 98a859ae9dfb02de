"""Who may start: by importance, then by age; the large are not starved by the small."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from holdfast.api.core.objects import Node, Pod
from holdfast.api.meta import Key
from holdfast.scheduling import gang as line
from holdfast.scheduling.candidates import CandidateNodes
from holdfast.scheduling.gang import DETAILED_MESSAGES, Gang, admit, run_admission
from holdfast.scheduling.ledger import Ledger
from holdfast.scheduling.messages import PermanentObstacle, obstacle
from tests.scheduling.gang.gangs import NOW, admitted, apart, gang, shape, verdict
from tests.scheduling.nodes import ledger, node, pod

HOST = "kubernetes.io/hostname"
OLD = 3600


def cluster(count: int = 2, gpus: int = 4, **facts: Any) -> Ledger:
    return ledger(*(node(f"gpu-{number}", gpus=gpus, **facts) for number in range(1, count + 1)))


@pytest.mark.parametrize(
    ("workers", "gpus", "fits"), [(2, 4, True), (3, 4, False), (8, 1, True), (9, 1, False), (2, 3, True), (3, 3, False)]
)
def test_all_workers_fit_or_none_starts(workers: int, gpus: int, fits: bool) -> None:
    assert verdict(gang(workers=workers, gpus=gpus), cluster()).admitted is fits


def test_the_more_important_gang_goes_first_and_then_the_older() -> None:
    line = [
        gang("young", 2, gpus=4, age_s=10),
        gang("old", 2, gpus=4, age_s=20),
        gang("important", 2, gpus=4, age_s=1, priority=100),
    ]
    assert admitted(line, cluster()) == {"important"}
    assert admitted(line[:2], cluster()) == {"old"}
    assert admitted([*line[:1], structs.replace(line[1], created_at=line[0].created_at)], cluster()) == {"old"}, (
        "then by name"
    )


def test_what_is_given_to_one_is_gone_for_the_next() -> None:
    line = [gang("a", 1, gpus=4, age_s=30), gang("b", 1, gpus=4, age_s=20), gang("c", 1, gpus=4, age_s=10)]
    verdicts = admit(line, cluster(), NOW)
    assert {uid for uid, each in verdicts.items() if each.admitted} == {"a", "b"}
    assert verdicts["c"].message == "needs 1 × 4 GPUs; no node has 4 free"


def test_workers_of_a_started_gang_that_have_no_machine_yet_come_first() -> None:
    started = gang("started", 3, gpus=4, standing="started", unbound=1)
    waiting = gang("waiting", 2, gpus=4, priority=1000)
    verdicts = admit([waiting, started], cluster(), NOW)
    assert verdicts["started"].admitted
    assert not verdicts["waiting"].admitted
    assert admitted([waiting, structs.replace(started, unbound=0)], cluster()) == {"started", "waiting"}


def test_a_started_gang_that_does_not_fit_whole_takes_what_there_is() -> None:
    started = gang("started", 9, gpus=4, standing="started", unbound=9)
    assert admitted([started, gang("other", 1, gpus=1)], cluster()) == {"started"}


def test_a_started_gang_that_keeps_apart_looks_elsewhere_than_where_its_others_are() -> None:
    held = ledger(node("a", gpus=8), node("b", gpus=4), pod("p", "a", gpu="1"))
    each = shape(1, affinity=apart(HOST))
    started = gang("started", 2, each=each, standing="started", unbound=1, machines=("a",))
    on_b = gang("other", 1, each=shape(4, nodeSelector={HOST: "b"}))
    assert admitted([started, on_b], held) == {"started"}
    whole = structs.replace(started, unbound=0)
    assert admitted([whole, on_b], held) == {"started", "other"}


@pytest.mark.parametrize(
    ("keys", "workers", "fits"),
    [
        ((), 8, True),
        ((HOST,), 4, True),
        ((HOST,), 5, False),
        (("zone",), 2, True),
        (("zone",), 3, False),
        ((HOST, "zone"), 2, True),
        ((HOST, "zone"), 3, False),
        (("rack",), 8, True),
    ],
)
def test_workers_that_keep_apart_get_a_place_each(keys: tuple[str, ...], workers: int, fits: bool) -> None:
    zones = [node(f"{zone}-{number}", gpus=2, labels={"zone": zone}) for zone in "ab" for number in "12"]
    each = shape(1, affinity=apart(*keys)) if keys else shape(1)
    assert verdict(gang(workers=workers, each=each), ledger(*zones)).admitted is fits


def test_machines_that_are_closed_to_the_job_hold_none_of_it() -> None:
    taint = {"key": "k", "effect": "NoSchedule"}
    for fault in ({"unschedulable": True}, {"ready": False}, {"taints": [taint]}, {"labels": {"zone": "b"}}):
        it = gang(each=shape(4, nodeSelector={"zone": "a"}))
        facts: dict[str, Any] = {"labels": {"zone": "a"}, **fault}
        assert not verdict(it, cluster(1, **facts)).admitted, fault
        assert verdict(it, cluster(1, labels={"zone": "a"})).admitted


def test_the_young_let_others_pass_and_the_old_do_not() -> None:
    busy = ledger(node("a", gpus=4), node("b", gpus=4), pod("p", "a", gpu="1"))
    line = [gang("large", 2, gpus=4, age_s=30), gang("small", 1, gpus=1, age_s=10)]
    assert admitted(line, busy) == {"small"}
    verdicts = admit(line, busy, NOW + timedelta(seconds=OLD))
    assert not verdicts["small"].admitted
    assert verdicts["small"].message == "2nd in line, behind ml/large (priority 0)"
    assert verdicts["small"].position == 2
    assert verdicts["large"].message == "needs 2 × 4 GPUs; 1 node has 4 free"


def test_capacity_is_reserved_only_where_the_gang_in_front_could_use_it() -> None:
    busy = ledger(node("a", gpus=4), node("b", gpus=4), node("cpu"), pod("p", "a", gpu="1"))
    large = gang("large", 2, gpus=4, age_s=OLD)
    assert admitted([large, gang("cpu", 1, each=shape(asks={"cpu": "8"}))], busy) == {"cpu"}
    assert admitted([large, gang("gpu", 1, each=shape(1, nodeSelector={HOST: "b"}))], busy) == set()


def test_only_what_the_one_in_front_lacks_is_reserved() -> None:
    busy = ledger(node("a", gpus=4), node("b", gpus=4), pod("p", "a", gpu="1"))
    large = gang("large", 2, gpus=4, age_s=OLD)
    without = gang("cpu", 1, each=shape(asks={"cpu": "8"}, nodeSelector={HOST: "b"}))
    assert admitted([large, without], busy) == {"cpu"}


def test_gpus_stay_reserved_while_something_else_is_missing() -> None:
    free = ledger(node("a", gpus=4, room={"cpu": "8"}), node("b", gpus=4, room={"cpu": "8"}), pod("p", "a", cpu="6"))
    large = gang("large", 2, each=shape(4, asks={"cpu": "4"}), age_s=OLD)
    assert admitted([large], free) == set()
    for each in (shape(1), shape(asks={"cpu": "1"})):
        assert admitted([large, gang("small", each=each)], free) == set()


def test_one_namespace_reserves_for_one_job_at_a_time() -> None:
    busy = ledger(
        node("a", gpus=4, labels={"zone": "a"}),
        node("b", gpus=4, labels={"zone": "b"}),
        pod("p", "a", gpu="1"),
        pod("q", "b", gpu="1"),
    )
    first = gang("first", 1, each=shape(4, nodeSelector={"zone": "a"}), age_s=OLD + 1)
    second = gang("second", 1, each=shape(4, nodeSelector={"zone": "b"}), age_s=OLD)
    small = {zone: gang(zone, 1, each=shape(1, nodeSelector={"zone": zone})) for zone in "ab"}
    assert admitted([first, second, *small.values()], busy) == {"b"}
    elsewhere = structs.replace(second, key=Key("other", "second"))
    assert admitted([first, elsewhere, *small.values()], busy) == set()
    verdicts = run_admission([first, second, *small.values()], busy, NOW, 600, per_namespace=2).decisions
    assert not any(each.admitted for each in verdicts.values())


def test_a_gang_that_fits_only_partly_beside_reservations_does_not_start() -> None:
    busy = ledger(node("a", gpus=4), node("b", gpus=4), node("c", gpus=1), pod("p", "a", gpu="1"))
    line = [gang("large", 2, gpus=4, age_s=OLD), gang("pair", 2, gpus=1), gang("single", 1, gpus=1, age_s=1)]
    assert admitted(line, busy) == {"single"}
    assert admit(line, busy, NOW)["pair"].message == "2nd in line, behind ml/large (priority 0)"


def test_a_smaller_one_of_the_same_shape_is_tried_after_a_larger_one_failed() -> None:
    each = shape(1, affinity=apart(HOST))
    busy = ledger(node("a", gpus=4), node("b", gpus=4), node("c", gpus=4), pod("p", "c", gpu="4"))
    line = [gang("three", 3, each=each, age_s=30), gang("two", 2, each=each, age_s=20)]
    assert admitted(line, busy) == {"two"}
    plain = [gang("nine", 9, gpus=1, age_s=30), gang("eight", 8, gpus=1, age_s=20)]
    assert admitted(plain, busy) == {"eight"}


def test_nothing_is_reserved_for_a_gang_that_could_never_start() -> None:
    line = [gang("huge", 3, gpus=4, age_s=OLD), gang("small", 1, gpus=1)]
    verdicts = admit(line, cluster(), NOW)
    assert verdicts["huge"].impossible
    assert verdicts["small"].admitted


def test_a_gang_that_restarts_keeps_its_capacity_from_the_less_and_the_equally_important() -> None:
    restarting = gang("restarting", 2, gpus=4, age_s=10, standing="keeping", restarting_s=1)
    older = gang("older", 2, gpus=4, age_s=OLD)
    assert admitted([restarting, older], cluster()) == {"restarting"}
    half = ledger(node("a", gpus=4), node("b", gpus=4), pod("dying", "a", gpu="4"))
    assert admitted([restarting, gang("small", 1, gpus=1)], half) == set(), "although it can't start yet itself"
    assert admitted([restarting, gang("vip", 1, gpus=4, priority=1)], half) == {"vip"}


def test_a_gang_that_restarts_and_lost_a_node_for_good_gives_up_its_capacity_in_the_end() -> None:
    restarting = gang("restarting", 3, gpus=4, age_s=OLD, standing="keeping", restarting_s=60)
    small = gang("small", 1, gpus=1)
    assert admitted([restarting, small], cluster(), 600) == set(), "a new machine may be on its way"
    assert admitted([restarting, small], cluster(), 30) == {"small"}


def test_a_job_of_unknown_age_has_not_waited() -> None:
    timeless = structs.replace(gang("timeless", 2, gpus=4), created_at="")
    busy = ledger(node("a", gpus=4), node("b", gpus=4), pod("p", "a", gpu="1"))
    assert admitted([timeless, gang("small", 1, gpus=1)], busy) == {"small"}


def test_far_back_in_the_queue_messages_have_no_numbers_that_change_all_the_time() -> None:
    line = [gang(f"job-{number:02}", 2, gpus=4, age_s=900 - number) for number in range(DETAILED_MESSAGES + 3)]
    held: list[Node | Pod] = [node("a", gpus=4), node("b", gpus=4), pod("p", "a", gpu="1")]
    for starvation_timeout_s in (600.0, 3600.0):
        verdicts = list(admit(line, ledger(*held), NOW, starvation_timeout_s).values())
        assert [each.position for each in verdicts] == list(range(1, DETAILED_MESSAGES + 4))
        assert verdicts[0].message == "needs 2 × 4 GPUs; 1 node has 4 free"
        assert {each.message for each in verdicts[DETAILED_MESSAGES:]} == {
            "needs 2 × 4 GPUs; at least 10 jobs are in line before it"
        }
        later = list(admit(line, ledger(*held, pod("q", "b", gpu="1")), NOW, starvation_timeout_s).values())
        assert [each.message for each in later[DETAILED_MESSAGES:]] == [
            each.message for each in verdicts[DETAILED_MESSAGES:]
        ]
        assert later[0].message != verdicts[0].message


def test_a_problem_of_the_job_itself_is_reported_at_any_position() -> None:
    line = [gang(f"job-{number:02}", 2, gpus=4, age_s=900 - number) for number in range(DETAILED_MESSAGES)]
    picky = gang("picky", 1, each=shape(1, nodeSelector={"gpu": "h200"}), age_s=1)
    told = admit([*line, picky], cluster(1), NOW)["picky"]
    assert told.message == "no node matches nodeSelector gpu=h200 (of 1 node)"


def test_a_thousand_gangs_of_one_shape_cost_one_scan_of_the_nodes() -> None:
    looks = 0

    class Counting(Ledger):
        def free(self, name: str) -> Any:
            nonlocal looks
            looks += 1
            return super().free(name)

    kept = Counting()
    for number in range(50):
        kept.node_changed(None, node(f"gpu-{number:02}", gpus=4))
        kept.pod_changed(None, pod(f"p-{number}", f"gpu-{number:02}", gpu="1"))
    many: list[Gang] = [gang(f"job-{number}", 2, gpus=4) for number in range(1000)]
    assert admitted(many, kept) == set()
    assert looks <= 50 * (1 + DETAILED_MESSAGES)


def test_a_shape_that_can_never_fit_is_found_once_for_all_gangs_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[CandidateNodes] = []

    def counting(spots: CandidateNodes, machines: int) -> PermanentObstacle | None:
        found.append(spots)
        return obstacle(spots, machines)

    monkeypatch.setattr(line, "obstacle", counting)
    many = [gang(f"job-{number}", 1 + number % 2, gpus=16) for number in range(100)]
    verdicts = admit(many, cluster(), NOW)
    assert all(each.impossible for each in verdicts.values())
    assert len(found) == 1
