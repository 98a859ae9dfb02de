"""Workloads that ask for twice the GPUs there are, created at once and ended one by one; the operator dies amid."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.chaos.history import recording
from tests.chaos.invariants import overbooked
from tests.chaos.placements import CHEAP, Placements, broken_rules, in_line, overpromised, submit, succeed
from tests.control_plane.api import Session
from tests.control_plane.server import ControlPlane, FreshControlPlane
from tests.control_plane.waiting import eventually
from tests.operator.conftest import StartOperator, install_kinds
from tests.operator.process import OperatorProcess

GPUS = 8
WITHIN_S = 600.0
# How many pods are ended at the same time.
HANDS = 4
# A machine that is busy with all this may be late with its nodes' heartbeats: here none is lost by that.
PATIENT = {"kube-controller-manager": ["--node-monitor-grace-period=1h"]}


@pytest.mark.timeout(1200)  # for a machine that does other things as well
@pytest.mark.parametrize("nodes", [200, pytest.param(1000, marks=pytest.mark.long)])
async def test_twice_as_many_workloads_as_nodes_share_them(
    fresh_control_plane: FreshControlPlane, start_operator: StartOperator, nodes: int
) -> None:
    """Each takes a whole node, so that those who have one are exactly the first in line at every moment."""
    plane, count = fresh_control_plane(flags=PATIENT), 2 * nodes
    operator = await begin(plane, start_operator, nodes, [GPUS] * count)
    async with recording(plane.api, Placements()) as history:
        operator.start()
        await first_wave_is_right(history, nodes, count, placed=nodes)
        ends = Ends(plane, history)
        await asyncio.gather(ends.until(nodes // 2), kill_after(operator, history, nodes + nodes // 5))
        await until_sent(history, nodes + nodes // 2)
        assert set(history.first_nodes) == firsts(history, nodes + nodes // 2)
        await asyncio.gather(ends.until(count), kill_after(operator, history, count - nodes // 5))
        await ended_well(history, count)


@pytest.mark.timeout(600)
async def test_workloads_of_all_sizes_fill_the_nodes_as_their_strategies_say(
    fresh_control_plane: FreshControlPlane, start_operator: StartOperator
) -> None:
    plane, nodes = fresh_control_plane(flags=PATIENT), 40
    sizes = [1 + number * 5 % GPUS for number in range(144)]
    assert sum(sizes) >= 2 * nodes * GPUS
    operator = await begin(plane, start_operator, nodes, sizes)
    async with recording(plane.api, Placements()) as history:
        operator.start()
        await first_wave_is_right(history, nodes, len(sizes))
        ends = Ends(plane, history)
        await asyncio.gather(ends.until(len(sizes)), kill_after(operator, history, len(sizes) * 3 // 4))
        await ended_well(history, len(sizes))


async def begin(
    plane: ControlPlane, start_operator: StartOperator, nodes: int, sizes: Sequence[int]
) -> OperatorProcess:
    """All is there before the operator is: its first look is at everyone."""
    install_kinds(plane)
    await plane.nodes.add(nodes // 5, gpus=GPUS, prefix="cheap", labels=CHEAP)
    await plane.nodes.add(nodes - nodes // 5, gpus=GPUS)
    operator = start_operator(plane, "--no-leader-elect")
    operator.kill()
    async with plane.api.session() as session:
        await submit(session, sizes)
    return operator


async def first_wave_is_right(history: Placements, nodes: int, count: int, placed: int | None = None) -> None:
    """Before any has ended: whoever has no node then has been told what it waits for."""

    async def waiting() -> int:
        return sum(phase == "Pending" for phase in history.phases().values())

    def settled(waits: int) -> bool:
        return len(history.workloads) == count == len(history.first_nodes) + waits

    await eventually(waiting, settled, what="everyone has a node or waits", within_s=WITHIN_S)
    assert placed in (None, len(history.first_nodes))
    there = [node.metadata for node in history.nodes.values()]
    cheap = {node.name for node in there if node.labels.items() >= CHEAP.items()}
    free = {node.name: GPUS for node in there}
    assert len(free) == nodes
    assert broken_rules(history.workloads, history.first_nodes, cheap, free) == []


class Ends:
    """Ends pods one after the other as they run, with a few hands."""

    def __init__(self, plane: ControlPlane, history: Placements) -> None:
        self._plane = plane
        self._history = history
        self._ended: set[str] = set()

    async def until(self, count: int) -> None:
        """So many in all."""
        async with self._plane.api.session() as session:
            await asyncio.gather(*(self._one_by_one(session, count) for _ in range(HANDS)))

    async def _one_by_one(self, session: Session, count: int) -> None:
        while len(self._ended) < count:
            pod = next((name for name in self._history.running() if name not in self._ended), None)
            if pod is None:
                await asyncio.sleep(0.05)
                continue
            self._ended.add(pod)
            await succeed(session, pod)


async def kill_after(operator: OperatorProcess, history: Placements, sent: int) -> None:
    await until_sent(history, sent)
    operator.kill()
    await asyncio.to_thread(operator.start)


async def until_sent(history: Placements, count: int) -> None:
    async def sent() -> int:
        return len(history.first_nodes)

    await eventually(sent, lambda seen: seen >= count, what=f"{count} workloads have a node", within_s=WITHIN_S)


def firsts(history: Placements, count: int) -> set[str]:
    return {it.metadata.name for it in in_line(history.workloads)[:count]}


async def ended_well(history: Placements, count: int) -> None:
    async def succeeded() -> int:
        return sum(phase == "Succeeded" for phase in history.phases().values())

    await eventually(succeeded, lambda seen: seen == count, what="all have succeeded", within_s=WITHIN_S)
    assert overbooked(history.changes) == []
    assert list(overpromised(history.changes, GPUS)) == []
    tries = {it.status.job_name for it in history.workloads if it.status is not None}
    assert tries == {f"{it.metadata.name}-job" for it in history.workloads}, "somebody was sent twice"
