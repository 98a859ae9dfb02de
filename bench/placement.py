"""One placement among 10 to 100,000 nodes, beside a scan of all nodes: python -m bench.placement [tries]

Both choose by the same rules from the same ledger, and have to choose the same node. A placement is all of it: joining
the line, a look, the room taken in the ledger and every index brought up to date. Time is the processor's: on a busy
machine a long scan would be interrupted more often than a short placement.
"""

import gc
import math
import sys
import time
from collections.abc import Iterator
from random import Random

import msgspec

from bench.many_jobs import say
from holdfast.api.core.objects import Node, Pod, PodSpec
from holdfast.api.meta import Key
from holdfast.scheduling.constraints import Request, gpus_in, shape_of
from holdfast.scheduling.ledger import GPU, Ledger
from holdfast.scheduling.placement import Placement
from holdfast.scheduling.strategies import STRATEGIES
from holdfast.scheduling.strategies.cost_optimized import CHEAP_LABEL, is_cheap

SIZES = (10, 100, 1_000, 10_000, 100_000)
GPUS = 8
# What must hold, whatever the machine: against the scan at so many nodes, and of the growth over all sizes.
AT, FLOOR = 10_000, 100.0
SCANS = 5


def seeded(number: int) -> Random:
    return Random(number)  # noqa: S311  # the same in every run, nothing secret


def cluster(size: int, random: Random) -> Ledger:
    """Nodes of 8 GPUs, all of them used a little or much; a tenth is cheap."""
    ledger = Ledger()
    for number in range(size):
        name = f"gpu-{number:06}"
        ledger.node_changed(None, _node(name, cheap=number % 10 == 0))
        # One in the middle of the names is always free, so that every size has a best one to find.
        used = 0 if number == size // 2 else random.randrange(1, GPUS + 1)
        ledger.pod_changed(None, _pod(name, used))
    return ledger


def _node(name: str, *, cheap: bool) -> Node:
    body = {
        "metadata": {"name": name, "labels": {CHEAP_LABEL: str(cheap).lower()}},
        "spec": {"taints": [{"key": GPU, "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {GPU: str(GPUS), "cpu": "96", "memory": "512Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    return msgspec.convert(body, Node)


def _pod(node: str, gpus: int) -> Pod:
    container = {"name": "main", "resources": {"limits": {GPU: str(gpus)}, "requests": {"cpu": "4"}}}
    return msgspec.convert({"metadata": {"name": node}, "spec": {"nodeName": node, "containers": [container]}}, Pod)


def request(number: int, strategy: str) -> Request:
    body = {
        "containers": [{"resources": {"limits": {GPU: "2"}, "requests": {"cpu": "4", "memory": "16Gi"}}}],
        "tolerations": [{"key": GPU, "operator": "Exists"}],
    }
    name = f"w-{number}"
    shape = shape_of(msgspec.convert(body, PodSpec), {}, "ml")
    return Request(key=Key("ml", name), uid=name, reservation_id=name, shape=shape, gpus=2, strategy=strategy)


def scan(ledger: Ledger, it: Request, random: Random) -> str | None:
    """Go through all nodes, keep those that are open and have enough, take the best of them."""
    found = []
    for machine in ledger.nodes.values():
        if it.shape.matches(machine) and it.shape.can_run_on(machine):
            free = gpus_in(ledger.available(machine.name))
            if free >= it.gpus:
                found.append((-free, machine.name))
    if it.strategy == "random":
        return random.choice(found)[1] if found else None
    if it.strategy == "costOptimized":
        found = [each for each in found if is_cheap(ledger.nodes[each[1]])] or found
    return min(found)[1] if found else None


def placements_s(placement: Placement, ledger: Ledger, strategy: str, tries: int) -> Iterator[float]:
    """Each is undone before the next, so that all find the same cluster."""
    random = seeded(1)
    for number in range(tries):
        it = request(number, strategy)
        expected = scan(ledger, it, random) if number < SCANS and strategy != "random" else None
        began = time.process_time()
        placement.enqueue(it, 0.0)
        placement.run_pass(0.0)
        took = time.process_time() - began
        found = placement.offered_node(it.uid)
        assert found is not None
        assert expected in (None, found), (expected, found)
        placement.leave(it.uid)
        yield took


def scans_s(ledger: Ledger, strategy: str, tries: int) -> Iterator[float]:
    random = seeded(1)
    it = request(0, strategy)
    for _ in range(tries):
        began = time.process_time()
        scan(ledger, it, random)
        yield time.process_time() - began


def median(values: Iterator[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def measure(size: int, tries: int) -> dict[str, tuple[float, float]]:
    """By strategy: the time of a placement and of a scan."""
    ledger = cluster(size, seeded(size))
    placement = Placement(ledger, seeded(2), reservation_timeout_s=60.0, starvation_timeout_s=600.0)
    gc.collect()
    found = {}
    for strategy in sorted(STRATEGIES):
        for _ in placements_s(placement, ledger, strategy, SCANS):
            pass  # the index is made once, when the first of a sort asks
        ours = median(placements_s(placement, ledger, strategy, tries))
        found[strategy] = ours, median(scans_s(ledger, strategy, SCANS if size > 1_000 else tries))
    return found


def run(tries: int) -> list[str]:
    """The floors that were missed."""
    say(f"One placement, median of {tries}. Growth is against {SIZES[0]} nodes, beside that of the logarithm;")
    say("the scan is how many times longer going through all nodes takes.\n")
    say(f"  {'nodes':>8}  {'logarithm':>9}" + "".join(f"  {name:>13} {'scan':>9}" for name in sorted(STRATEGIES)))
    missed, first = [], measure(SIZES[0], tries)
    for size in SIZES:
        found = first if size == SIZES[0] else measure(size, tries)
        log = math.log(size) / math.log(SIZES[0])
        cells = []
        for strategy, (ours, scan_s) in found.items():
            growth, faster = ours / first[strategy][0], scan_s / ours
            cells.append(f"  {growth:12.2f}× {faster:8.1f}×")
            if growth > log * 1.5 and size > SIZES[0]:
                missed.append(f"{strategy}: {growth:.1f}× at {size} nodes, more than the logarithm's {log:.1f}×")
            if size == AT and faster < FLOOR:
                missed.append(f"{strategy}: only {faster:.0f}× faster than the scan at {AT} nodes, not {FLOOR:.0f}×")
        say(f"  {size:8,}  {log:8.2f}×" + "".join(cells))
    return missed


if __name__ == "__main__":
    if missed := run(*map(int, sys.argv[1:2] or ["300"])):
        sys.exit("missed: " + "; ".join(missed))
