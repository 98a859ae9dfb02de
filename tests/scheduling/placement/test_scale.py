"""A large cluster that is asked for twice what it has, emptied one by one: no node is overcommitted on the way."""

from collections import Counter
from random import Random

from holdfast.scheduling.constraints import Request
from holdfast.scheduling.ledger import Ledger
from holdfast.scheduling.placement import Placement
from holdfast.scheduling.strategies.cost_optimized import CHEAP_LABEL
from tests.scheduling.nodes import node
from tests.scheduling.placement.requests import pod_of, request

NODES = 300
GPUS = 8
SIZES = (1, 2, 4, 8)
STRATEGIES = ("leastLoaded", "random", "costOptimized")


def line(gpus: int, random: Random) -> list[Request]:
    """Workloads that together ask for so many."""
    found: list[Request] = []
    while gpus > 0:
        size = random.choice(SIZES)
        priority, age_s = random.randrange(3), random.randrange(1000)
        name = f"w-{len(found):05}"
        found.append(request(name, size, random.choice(STRATEGIES), priority=priority, age_s=age_s))
        gpus -= size
    return found


def test_a_cluster_with_requests_for_twice_its_gpus_runs_all_workloads_and_overcommits_no_node() -> None:
    random, ledger = Random(3), Ledger()
    for number in range(NODES):
        ledger.node_changed(None, node(f"n-{number:04}", gpus=GPUS, labels={CHEAP_LABEL: str(number % 5 == 0).lower()}))
    placement = Placement(ledger, Random(5), reservation_timeout_s=60.0, starvation_timeout_s=1e9)
    waiting = {it.uid: it for it in line(2 * NODES * GPUS, random)}
    for it in waiting.values():
        placement.enqueue(it, 0)
    running: dict[str, tuple[Request, str]] = {}
    used: Counter[str] = Counter()
    order: list[Request] = []
    while waiting or running:
        for it in placement.run_pass(0).assigned:
            machine = placement.offered_node(it.uid)
            assert machine is not None
            used[machine] += it.gpus
            assert used[machine] <= GPUS
            placement.confirm(waiting.pop(it.uid), machine, 0)
            ledger.pod_changed(None, pod_of(it, machine))
            placement.leave(it.uid)
            running[it.uid] = (it, machine)
            order.append(it)
        free = [GPUS - used[f"n-{number:04}"] for number in range(NODES)]
        assert all(it.gpus > max(free) for it in waiting.values())
        it, machine = running.pop(random.choice(sorted(running)))
        used[machine] -= it.gpus
        ledger.pod_changed(pod_of(it, machine), None)
    # Among those who ask for the same, nobody of less importance or younger was first.
    for size in SIZES:
        alike = [(-it.priority, it.since, it.uid) for it in order if it.gpus == size]
        assert alike == sorted(alike)
