"""What the operator itself knows of nodes: their Leases over a watch that may fail, and connections to them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec import structs
from structlog.testing import capture_logs

from holdfast.api.core.objects import Node, PodStatus
from holdfast.api.meta import Key
from holdfast.cluster.errors import Forbidden, Unreachable
from holdfast.cluster.resources import LEASES
from holdfast.runtime.informer import Reflector, Store
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.reachability import Address, Answer, try_connect
from holdfast.trainingjob import node_probes
from holdfast.trainingjob.decide.node_death import LONGEST_GAP_S, AddressHistory, LeaseHistory, WorkerNode
from holdfast.trainingjob.decide.snapshot import TIMING
from holdfast.trainingjob.node_leases import NODE_LEASES, NodeLeases
from holdfast.trainingjob.node_probes import BACK_ASK_AGAIN_S, LATE_ASK_AGAIN_S, MOST_AT_ONCE, NodeProbes
from holdfast.trainingjob.node_witnesses import NodeWitnesses
from tests.runtime.scripted import ScriptedCluster
from tests.runtime.things import running as running_task
from tests.runtime.virtual import now_s, settled, virtual
from tests.trainingjobs import running

KUBELET = ("10.0.0.1", 10250)


class Following:
    """The Leases of a cluster, in virtual time."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.cluster = cluster
        self.own_lease_s: float | None = None
        self.leases = NodeLeases(cluster, now_s, lambda: self.own_lease_s)

    def renew(self, node: str) -> None:
        self.cluster.put(LEASES, {"metadata": {"name": node}}, namespace=NODE_LEASES)

    async def renewing(self, *nodes: str, times: int, every_s: float = 10.0) -> None:
        for _ in range(times):
            await asyncio.sleep(every_s)
            for node in nodes:
                self.renew(node)
            await settled()


@asynccontextmanager
async def following() -> AsyncIterator[Following]:
    cluster = ScriptedCluster()
    it = Following(cluster)
    reflector = partial(Reflector, cluster, LEASES, Store(), metrics=Metrics(), random=Random(0), namespace=NODE_LEASES)
    task = asyncio.create_task(it.leases.run(lambda handler: reflector(handlers=(handler,))))
    try:
        yield it
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@virtual
async def test_nothing_is_asked_for_before_a_worker_reports() -> None:
    async with following() as it:
        await asyncio.sleep(600)
        assert it.cluster.calls == []
        it.leases.follow()
        await settled()
        assert it.cluster.calls == [(verb, "leases", Key(NODE_LEASES, "")) for verb in ("list", "watch")]


@virtual
async def test_renewals_are_known_with_their_rhythm_without_any_further_request() -> None:
    async with following() as it:
        it.renew("a")
        it.renew("b")
        it.leases.follow()
        await it.renewing("a", "b", times=4)
        await it.renewing("a", times=2)
        a, b = it.leases.by_node["a"], it.leases.by_node["b"]
        assert (a.intervals_s, b.intervals_s) == ((10, 10, 10), (10, 10, 10))
        assert (now_s() - a.since_s, now_s() - b.since_s) == (0, 20)
        assert len(it.cluster.calls) == 2


@virtual
async def test_a_watch_that_is_cut_and_goes_on_costs_no_knowledge() -> None:
    async with following() as it:
        it.renew("a")
        it.leases.follow()
        await it.renewing("a", times=3)
        it.cluster.cut()
        await it.renewing("a", times=1)
        assert it.leases.by_node["a"].has_rhythm
        assert it.leases.serving is not None
        assert now_s() - it.leases.serving.since_s >= 40


@virtual
async def test_after_a_gap_everything_is_learned_anew() -> None:
    async with following() as it:
        it.renew("a")
        it.renew("b")
        it.leases.follow()
        await it.renewing("a", "b", times=3)
        it.cluster.delivering.clear()
        await asyncio.sleep(LONGEST_GAP_S + 1)
        it.renew("a")
        it.cluster.delivering.set()
        await settled()
        assert it.leases.serving is not None
        assert it.leases.serving.since_s == now_s()
        assert not it.leases.by_node["a"].has_rhythm
        assert it.leases.by_node["b"].since_s < it.leases.serving.since_s


@virtual
async def test_that_the_operators_own_lease_is_renewed_shows_that_the_api_server_serves() -> None:
    async with following() as it:
        it.renew("a")
        it.leases.follow()
        await it.renewing("a", times=3)
        for _ in range(30):
            it.own_lease_s = now_s()
            await asyncio.sleep(2)
        assert it.leases.serving is not None
        assert now_s() - it.leases.serving.since_s == 90
        await asyncio.sleep(LONGEST_GAP_S + 1)  # it is not renewed any more
        it.renew("a")
        await settled()
        assert it.leases.serving.since_s == now_s()


@virtual
async def test_a_look_shows_what_the_watch_has_not_told_yet() -> None:
    async with following() as it:
        it.renew("a")
        it.leases.follow()
        await it.renewing("a", times=3)
        it.cluster.delivering.clear()
        await asyncio.sleep(10)
        it.renew("a")
        await asyncio.sleep(1)
        assert now_s() - it.leases.by_node["a"].since_s == 11
        await it.leases.look("a")
        assert it.leases.by_node["a"].since_s == now_s()


@virtual
async def test_a_lease_that_can_not_be_read_shows_nothing() -> None:
    async with following() as it:
        it.cluster.errors["get"].append(Unreachable("no"))
        await it.leases.look("a")
        await it.leases.look("a")
        assert (it.leases.by_node, it.leases.serving) == ({}, None)


@virtual
async def test_that_a_lease_can_not_be_read_is_said_once_until_it_can() -> None:
    async with following() as it:
        with capture_logs() as logs:
            for _ in range(2):
                it.cluster.errors["get"] = [Forbidden("no")] * 10
                for _ in range(10):
                    await it.leases.look("a")
                it.renew("a")
                await it.leases.look("a")
        assert [line["event"] for line in logs] == ["can't look at a node's Lease"] * 2


@virtual
async def test_a_lease_that_is_gone_is_forgotten() -> None:
    async with following() as it:
        it.renew("a")
        it.leases.follow()
        await it.renewing("a", times=1)
        it.cluster.drop(LEASES, Key(NODE_LEASES, "a"))
        await settled()
        assert it.leases.by_node == {}


@virtual
async def test_without_the_right_to_watch_looks_are_all_there_is() -> None:
    async with following() as it:
        it.renew("a")
        it.cluster.errors["list"] = [Forbidden("no")] * 1000
        it.leases.follow()
        with capture_logs() as logs:
            for _ in range(30):
                await asyncio.sleep(2)
                await it.leases.look("a")
        assert [line["event"] for line in logs] == ["watch lost"], "once, and not with every attempt"
        found = it.leases.by_node["a"]
        assert (now_s() - found.since_s, found.has_rhythm) == (58, False)


class CountedLeases(dict[str, LeaseHistory]):
    walks = 0

    def values(self) -> Any:
        self.walks += 1
        return super().values()


@virtual
async def test_all_nodes_are_gone_through_once_however_many_fall_silent_together() -> None:
    names = [f"gpu-{number}" for number in range(50)]
    async with following() as it:
        it.leases.follow()
        it.own_lease_s = now_s()
        await it.renewing(*names, times=3)
        workers = [WorkerNode(name, (POD,), now_s()) for name in names]
        witnesses = NodeWitnesses(it.leases, NodeProbes(None, now_s), TIMING, now_s)
        counted = it.leases.by_node = CountedLeases(it.leases.by_node)
        await asyncio.sleep(18)
        for _ in range(2):
            await asyncio.sleep(2)
            for worker in workers:
                witnesses.judge(worker, {})
        assert counted.walks == 2


# Connections


POD = structs.replace(running(0, node="gpu-0"), status=PodStatus(phase="Running", pod_ip="10.0.1.1"))


def node_at(address: str, *, port: int = 10250, kind: str = "InternalIP") -> Node:
    status = {
        "addresses": [{"type": "Hostname", "address": "gpu-0"}, {"type": kind, "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    return msgspec.convert({"metadata": {"name": "gpu-0"}, "status": status}, Node)


@pytest.mark.parametrize(
    ("node", "known", "late"),
    [
        (node_at("10.0.0.1"), [KUBELET], [KUBELET, ("10.0.1.1", 8470)]),
        (node_at("10.0.0.1", port=10999), [("10.0.0.1", 10999)], [("10.0.0.1", 10999), ("10.0.1.1", 8470)]),
        (node_at("10.0.0.1", port=0), [], [("10.0.1.1", 8470)]),
        (node_at("34.1.2.3", kind="ExternalIP"), [], [("10.0.1.1", 8470)]),
        (None, [], [("10.0.1.1", 8470)]),
    ],
    ids=["usual", "another-port", "no-port", "no-address", "no-node"],
)
def test_a_nodes_kubelet_is_asked_before_and_its_sidecars_only_when_its_lease_is_late(
    node: Node | None, known: list[Address], late: list[Address]
) -> None:
    @virtual
    async def scene() -> None:
        cluster, nodes = ScriptedCluster(), {"gpu-0": node} if node is not None else {}
        cluster.put(LEASES, {"metadata": {"name": "gpu-0"}}, namespace=NODE_LEASES)
        async with probing("unreachable") as (probes, asked):
            leases = NodeLeases(cluster, now_s)
            witnesses = NodeWitnesses(leases, probes, TIMING, now_s)
            worker = WorkerNode("gpu-0", (POD,), now_s())
            witnesses.follow([worker], nodes)
            await asyncio.sleep(15)
            assert asked == known
            await witnesses.ask([worker], nodes)
            cluster.put(LEASES, {"metadata": {"name": "gpu-0"}}, namespace=NODE_LEASES)
            await asyncio.sleep(5)
            assert asked == known + late
            await witnesses.ask([worker], nodes)
            await asyncio.sleep(10)
            assert asked == known + late, "its Lease was renewed"

    scene()


@asynccontextmanager
async def probing(answer: Answer = "accepted", takes_s: float = 1.0) -> AsyncIterator[tuple[NodeProbes, list[Address]]]:
    asked: list[Address] = []

    async def connect(address: Address) -> Answer:
        asked.append(address)
        await asyncio.sleep(takes_s)
        return answer

    probes = NodeProbes(connect, now_s)
    task = asyncio.create_task(probes.run())
    try:
        yield probes, asked
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@virtual
async def test_nobody_waits_for_an_answer_and_it_is_there_later() -> None:
    async with probing() as (probes, _):
        began_s = now_s()
        probes.ask([KUBELET], every_s=600)
        assert probes.of(KUBELET) is None
        await asyncio.sleep(2)
        assert probes.of(KUBELET) == AddressHistory(began_s + 1, None, "accepted", began_s, began_s + 1)


@virtual
async def test_an_address_that_can_not_even_be_tried_ends_nothing() -> None:
    impossible = ("127.0.0.1", 70_000)
    probes = NodeProbes(try_connect, now_s)
    async with running_task(probes.run()):
        for _ in range(2):
            probes.ask([impossible], every_s=LATE_ASK_AGAIN_S)
            await asyncio.sleep(LATE_ASK_AGAIN_S)
        found = probes.of(impossible)
        assert found is not None
        assert (found.answer, found.told_s > found.failing_s if found.failing_s else False) == ("failed", True)


@virtual
async def test_an_address_is_asked_once_at_a_time_and_no_more_often_than_wanted() -> None:
    async with probing("unreachable") as (probes, asked):
        for _ in range(10):
            probes.ask([KUBELET], every_s=600)
        await asyncio.sleep(300)
        probes.ask([KUBELET], every_s=600)
        assert asked == [KUBELET]
        probes.ask([KUBELET], every_s=2)
        await asyncio.sleep(2)
        assert asked == [KUBELET] * 2


@virtual
async def test_a_node_that_answered_and_did_not_since_is_asked_again_soon() -> None:
    answers: list[Answer] = ["accepted", "unreachable", "accepted", "accepted"]
    asked_s: list[float] = []

    async def connect(_: Address) -> Answer:
        asked_s.append(now_s() - began_s)
        return answers[len(asked_s) - 1]

    began_s = now_s()
    probes = NodeProbes(connect, now_s)
    async with running_task(probes.run()):
        for second in range(700):
            if second == 100:
                probes.ask([KUBELET], every_s=LATE_ASK_AGAIN_S)
            probes.know([KUBELET])
            await asyncio.sleep(1)
    assert asked_s == [0, 100, 100 + BACK_ASK_AGAIN_S]


@virtual
async def test_a_node_that_never_answered_is_asked_no_more_often_than_others() -> None:
    async with probing("unreachable", takes_s=0.0) as (probes, asked):
        for _ in range(700):
            probes.know([KUBELET])
            await asyncio.sleep(1)
        assert len(asked) == 2


@virtual
async def test_what_is_no_address_is_not_asked() -> None:
    async with probing() as (probes, asked):
        probes.ask([("node-1.example.com", 10250)], every_s=2)
        await asyncio.sleep(10)
        assert asked == []


@virtual
async def test_who_is_not_to_ask_asks_nobody() -> None:
    probes = NodeProbes(None, now_s)
    probes.ask([KUBELET], every_s=2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await probes.run()
    assert probes.of(KUBELET) is None


@virtual
async def test_only_so_many_are_asked_at_a_time() -> None:
    async with probing(takes_s=4.0) as (probes, asked):
        probes.ask([(f"10.0.0.{number}", 10250) for number in range(MOST_AT_ONCE + 5)], every_s=2)
        await asyncio.sleep(1)
        assert len(asked) == MOST_AT_ONCE
        await asyncio.sleep(4)
        assert len(asked) == MOST_AT_ONCE + 5


@virtual
async def test_addresses_of_long_ago_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_probes, "MOST_KEPT", 2)
    old, other, new = (("10.0.0.2", 10250), ("10.0.0.3", 10250), KUBELET)
    async with probing() as (probes, _):
        probes.ask([old], every_s=2)
        await asyncio.sleep(node_probes.FORGOTTEN_S)
        for address in (other, new):
            assert probes.of(old) is not None
            probes.ask([address], every_s=2)
            await asyncio.sleep(2)
        assert (probes.of(old), probes.of(other) is None, probes.of(new) is None) == (None, False, False)
