"""The whole: start, stand by, lead, stop in order, and end loudly when a part of it dies."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import aiohttp
import pytest
from structlog.testing import capture_logs

from holdfast.api.meta import Key
from holdfast.cluster.errors import ClusterError, Forbidden, NotFound, NotLeading, Unauthorized, Unreachable
from holdfast.cluster.resources import LEASES
from holdfast.runtime.controller import Controller, Done, Result, TerminalError, Watch, owned_by
from holdfast.runtime.events import EVENTS
from holdfast.runtime.leader import Elector, LeaseLost
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator, OperatorSettings
from holdfast.runtime.process import utc_now
from tests.runtime.scripted import WRITES, ScriptedCluster
from tests.runtime.things import PARTS, THINGS, A, noon, part, running, thing, until
from tests.runtime.virtual import now_s, settled, virtual

LEASE = Key("holdfast-system", "holdfast")


async def at_once() -> None:
    pass


class Things:
    """A small real reconciler: every thing gets one part and an event."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._things = operator.store(THINGS)
        self._parts = operator.store(PARTS)
        self.writer = operator.writer()
        self.before: Callable[[], Awaitable[None]] = at_once
        self.reconciled: list[str] = []

    async def reconcile(self, key: Key) -> Result:
        await self.before()
        obj = self._things.get(key)
        if obj is not None and self._parts.get(key) is None:
            await self.writer.for_key(key).create(PARTS, part(key.name, key.name), namespace=key.namespace)
            self._operator.recorder.normal(THINGS, obj, "Made", "its part is made")
        self.reconciled.append(key.name)
        return Done()

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        raise AssertionError("nothing here is terminal")


class Process:
    """One operator as a process has it, on a cluster that it may share."""

    def __init__(self, cluster: ScriptedCluster, name: str = "one", *, elects: bool = True, **settings: object) -> None:
        self.cluster = cluster
        self.metrics = Metrics()
        self.skipped_s = 0.0
        elector = Elector(
            cluster,
            LEASE,
            name,
            now=noon,
            random=Random(name),
            metrics=self.metrics,
            clock=lambda: now_s() + self.skipped_s,
        )
        cluster.gate = elector.require_leadership if elects else cluster.gate
        self.operator = Operator(
            cluster,
            identity=name,
            now=noon,
            random=Random(1),
            metrics=self.metrics,
            elector=elector if elects else None,
            settings=OperatorSettings(**settings),  # type: ignore[arg-type]  # whatever a test sets
        )
        self.things = Things(self.operator)
        self.operator.add(
            Controller("thing", THINGS, self.things, self.things.writer, watches=(Watch(PARTS, owned_by(THINGS)),))
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        async with running(self.operator.run()) as task:
            await asyncio.sleep(0.1)
            yield task


@virtual
async def test_it_leads_and_works_and_a_second_look_writes_nothing() -> None:
    cluster = ScriptedCluster()
    cluster.put(THINGS, thing("a"))
    one = Process(cluster)
    async with one.running():
        cluster.put(THINGS, thing("b"))
        await settled()
        assert {obj["metadata"]["name"] for obj in cluster.all_of(PARTS)} == {"a", "b"}
        assert len(cluster.all_of(EVENTS)) == 2
        cluster.calls.clear()
        await asyncio.sleep(1000.0)  # two resyncs and more
        assert one.things.reconciled.count("a") >= 3
        assert {call[1] for call in cluster.calls_of(*WRITES)} == {"leases"}


@virtual
async def test_without_an_elector_it_works_at_once_and_touches_no_lease() -> None:
    cluster = ScriptedCluster()
    cluster.put(THINGS, thing("a"))
    process = Process(cluster, elects=False)
    async with process.running():
        assert len(cluster.all_of(PARTS)) == 1
        assert cluster.all_of(LEASES) == []
        assert process.metrics.registry.get_sample_value("holdfast_leader") == 1


@virtual
async def test_a_standby_keeps_its_stores_warm_writes_nothing_and_takes_over() -> None:
    cluster = ScriptedCluster()
    first, second = Process(cluster, "one"), Process(cluster, "two")
    cluster.gate = lambda: None
    async with second.running():
        leader, standby = second, first
        async with standby.running() as waiting:
            cluster.put(THINGS, thing("a"))
            await asyncio.sleep(30.0)
            assert leader.things.reconciled
            assert not standby.things.reconciled
            assert standby.operator.store(THINGS).get(A) is not None
            assert not standby.operator.unready_reasons()  # ready, so that a rolling update goes on
            leader.operator.stop()
            await asyncio.sleep(3.0)
            assert standby.things.reconciled == ["a"]
            assert not waiting.done()
    assert len(cluster.all_of(PARTS)) == 1


@virtual
async def test_a_standby_shows_no_objects_in_gauges_until_it_leads() -> None:
    """Else a sum over the replicas would count each object twice."""
    cluster = ScriptedCluster()
    cluster.put(THINGS, thing("a"))
    first, second = Process(cluster, "first"), Process(cluster, "second")
    cluster.gate = lambda: None
    shown = [each.operator.shown(each.operator.store(THINGS).list) for each in (first, second)]
    async with first.running() as leading, second.running():
        assert [len(tuple(objects())) for objects in shown] == [1, 0]
        first.operator.stop()
        await leading
        await asyncio.sleep(20)
        assert len(tuple(shown[1]())) == 1


@virtual
async def test_stopping_goes_in_order() -> None:
    cluster = ScriptedCluster()
    one = Process(cluster)
    release = asyncio.Event()

    async def busy() -> None:
        await release.wait()

    one.things.before = busy
    async with one.running() as task:
        cluster.put(THINGS, thing("a"))
        await settled()
        cluster.calls.clear()
        one.operator.stop()
        await asyncio.sleep(5.0)
        cluster.put(THINGS, thing("late"))
        assert not task.done()  # what runs may finish, and the Lease is kept meanwhile
        assert set(cluster.calls_of(*WRITES)) == {("patch", "leases", LEASE)}
        release.set()
        await task
    assert one.things.reconciled == ["a"]
    writes = [(verb, plural) for verb, plural, _ in cluster.calls_of(*WRITES)]
    assert writes[-3:] == [("create", "parts"), ("create", "events"), ("patch", "leases")]
    assert cluster.peek(LEASES, LEASE)["spec"]["holderIdentity"] == ""
    assert one.operator.store(THINGS).get(Key("ns", "late")) is None  # nobody watched any more
    assert not cluster.calls_of("list", "watch")


@virtual
async def test_a_reconcile_that_does_not_end_within_the_grace_is_cancelled() -> None:
    cluster = ScriptedCluster()
    one = Process(cluster, grace_s=20.0)

    async def for_ever() -> None:
        await asyncio.Event().wait()

    one.things.before = for_ever
    with capture_logs() as logs:
        async with one.running() as task:
            cluster.put(THINGS, thing("a"))
            await settled()
            asked = now_s()
            one.operator.stop()
            await task
            assert 20.0 <= now_s() - asked < 21.0
    assert [line["part"] for line in logs if line["log_level"] == "warning"] == ["workers"]
    assert cluster.all_of(PARTS) == []
    assert cluster.peek(LEASES, LEASE)["spec"]["holderIdentity"] == ""


@virtual
async def test_events_that_cannot_be_written_do_not_hold_up_the_end() -> None:
    cluster = ScriptedCluster()
    one = Process(cluster, flush_s=5.0)
    create = cluster.create

    async def events_hang(resource: object, *args: object, **rest: object) -> object:
        if resource == EVENTS:
            await asyncio.Event().wait()
        return await create(resource, *args, **rest)  # type: ignore[arg-type]  # as it was called

    cluster.create = events_hang  # type: ignore[method-assign,assignment]  # a fault
    async with one.running() as task:
        cluster.put(THINGS, thing("a"))
        await settled()
        asked = now_s()
        one.operator.stop()
        await task
        assert now_s() - asked < 6.0
    assert cluster.peek(LEASES, LEASE)["spec"]["holderIdentity"] == ""


@virtual
async def test_a_standby_stops_at_once_and_releases_nothing() -> None:
    cluster = ScriptedCluster()
    first, second = Process(cluster, "one"), Process(cluster, "two")
    async with second.running(), first.running() as standby:
        first.operator.stop()
        await standby
        assert cluster.peek(LEASES, LEASE)["spec"]["holderIdentity"] == "two"


@virtual
async def test_it_can_be_stopped_before_it_has_started() -> None:
    cluster = ScriptedCluster()
    one = Process(cluster)
    one.operator.stop()
    await one.operator.run()
    assert cluster.calls_of(*WRITES) == []


@pytest.mark.parametrize(
    "error",
    [
        Forbidden("list things: holdfast may not"),
        NotFound("list things: no such kind"),
        Unauthorized("the token has expired"),
        Unreachable("no answer from the server"),
    ],
)
def test_what_is_wrong_at_the_start_is_raised_as_it_is(error: ClusterError) -> None:
    @virtual
    async def start() -> None:
        cluster = ScriptedCluster()
        cluster.errors["list"] = [error]
        with pytest.raises(type(error)) as raised:
            await Process(cluster).operator.run()
        assert raised.value is error
        assert cluster.calls_of(*WRITES) == []

    start()


@virtual
async def test_a_missing_right_to_the_lease_is_raised_at_the_start() -> None:
    cluster = ScriptedCluster()
    cluster.errors["get"] = [Forbidden("get leases: holdfast may not")]
    with pytest.raises(Forbidden, match="get leases"):
        await Process(cluster).operator.run()


@virtual
async def test_a_lost_connection_is_survived_with_readiness_false_meanwhile() -> None:
    cluster = ScriptedCluster()
    one = Process(cluster, elects=False)
    async with one.running() as task:
        assert one.operator.unready_reasons() == []
        cluster.errors["watch"] = [Unreachable("the server is away")] * 6
        cluster.cut(Unreachable("the server is away"))
        await settled()
        assert one.operator.unready_reasons() == [
            "things.tests.holdfast.dev: the server is away",
            "parts: the server is away",
        ]
        cluster.put(THINGS, thing("a"))
        await asyncio.sleep(120.0)
        assert one.operator.unready_reasons() == []
        assert one.things.reconciled
        assert not task.done()


@virtual
async def test_losing_the_lease_ends_it_with_that_reason() -> None:
    cluster = ScriptedCluster()
    one = Process(cluster)
    task = asyncio.create_task(one.operator.run())
    await asyncio.sleep(0.1)
    await cluster.patch(LEASES, LEASE, {"spec": {"holderIdentity": "two"}})
    with pytest.raises(LeaseLost, match="taken over by two"):
        await task
    assert cluster.peek(LEASES, LEASE)["spec"]["holderIdentity"] == "two"


@virtual
async def test_a_paused_leader_writes_nothing_when_it_comes_back_and_ends() -> None:
    cluster = ScriptedCluster()
    one = Process(cluster)
    task = asyncio.create_task(one.operator.run())
    await asyncio.sleep(0.5)
    cluster.put(THINGS, thing("a"))
    one.skipped_s = 20.0
    cluster.calls.clear()
    with pytest.raises((NotLeading, LeaseLost)):
        await task
    assert cluster.calls_of(*WRITES) == []
    assert cluster.all_of(PARTS) == []


@virtual
async def test_a_part_that_crashes_ends_the_whole_with_its_reason_and_gives_the_lease_back() -> None:
    cluster = ScriptedCluster()
    one = Process(cluster)

    async def crash() -> None:
        raise ZeroDivisionError("a bug in the recorder")

    one.operator.recorder.run = crash  # type: ignore[method-assign]  # a bug
    with pytest.raises(ZeroDivisionError, match="a bug in the recorder"):
        await one.operator.run()

    two = Process(cluster, "two")
    broken = asyncio.Event()

    async def crash_later() -> None:
        await broken.wait()
        raise ZeroDivisionError("a bug in the watches")

    two.operator._informers.run = crash_later  # type: ignore[method-assign]  # a bug
    task = asyncio.create_task(two.operator.run())
    await asyncio.sleep(0.5)
    assert cluster.peek(LEASES, LEASE)["spec"]["holderIdentity"] == "two"
    broken.set()
    with pytest.raises(ZeroDivisionError, match="a bug in the watches"):
        await task
    assert cluster.peek(LEASES, LEASE)["spec"]["holderIdentity"] == ""


@virtual
async def test_of_several_namespaces_only_these_are_worked_on() -> None:
    cluster = ScriptedCluster()
    async with Process(cluster, namespaces=("ns", "other"), elects=False).running():
        for namespace in ("ns", "other", "foreign"):
            cluster.put(THINGS, thing("a"), namespace=namespace)
        await settled()
        assert {obj["metadata"]["namespace"] for obj in cluster.all_of(PARTS)} == {"ns", "other"}


async def test_health_and_metrics_are_served_while_it_runs() -> None:
    cluster = ScriptedCluster()
    cluster.put(THINGS, thing("a"))
    process = Process(cluster, elects=False, health_port=0, metrics_port=0, host="127.0.0.1")
    operator = process.operator

    async def fetch(port: int | None, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, await answer.text()

    async with running(operator.run()) as task:
        await until(lambda: process.things.reconciled, "a reconcile")
        assert await fetch(operator.health_port, "/healthz") == (200, "ok\n")
        assert await fetch(operator.health_port, "/readyz") == (200, "ok\n")
        _, text = await fetch(operator.metrics_port, "/metrics")
        assert 'holdfast_reconciles_total{controller="thing",result="done"}' in text
        assert 'holdfast_queue_depth{controller="thing"} 0.0' in text
        cluster.errors["watch"] = [Unreachable("the server is away")] * 6
        cluster.cut(Unreachable("the server is away"))
        await until(operator.unready_reasons, "readiness is false")
        status, text = await fetch(operator.health_port, "/readyz")
        assert (status, "parts: the server is away\n" in text) == (503, True)
        assert (await fetch(operator.health_port, "/healthz"))[0] == 200
        operator.stop()
        await task
    with pytest.raises(aiohttp.ClientConnectorError):
        await fetch(operator.health_port, "/healthz")


async def test_the_clock_on_the_wall_knows_its_zone() -> None:
    assert utc_now().utcoffset() is not None
