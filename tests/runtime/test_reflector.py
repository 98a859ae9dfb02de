"""A store stays equal to the cluster through every way in which a watch can end."""

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from random import Random

import pytest
from structlog.testing import capture_logs

from holdfast.api.meta import Key
from holdfast.cluster.errors import ClusterError, Expired, Forbidden, NotFound, ServerError, Unreachable
from holdfast.runtime.informer import Reflector, Store
from holdfast.runtime.metrics import Metrics
from tests.runtime.scripted import ScriptedCluster
from tests.runtime.things import THINGS, A, B, C, Thing, running, thing
from tests.runtime.virtual import now_s, settled, virtual


class Rig:
    """A reflector on a scripted cluster, and a record of what it told its handler."""

    def __init__(self, namespace: str = "") -> None:
        self.cluster = ScriptedCluster()
        self.store: Store[Thing] = Store()
        self.metrics = Metrics()
        self.told: list[tuple[int | None, int | None]] = []
        self.reflector = Reflector(
            self.cluster,
            THINGS,
            self.store,
            handlers=[self._handle],
            metrics=self.metrics,
            random=Random(1),
            namespace=namespace,
        )

    def _handle(self, old: Thing | None, new: Thing | None) -> None:
        self.told.append((old.spec.size if old else None, new.spec.size if new else None))

    def sizes(self) -> dict[str, int]:
        return {obj.metadata.name: obj.spec.size for obj in self.store}

    def restarts(self, reason: str) -> float:
        labels = {"resource": str(THINGS), "reason": reason}
        return self.metrics.registry.get_sample_value("holdfast_watch_restarts_total", labels) or 0.0


@virtual
async def test_it_lists_and_then_follows_every_change() -> None:
    rig = Rig()
    rig.cluster.put(THINGS, thing("a", 1))
    async with running(rig.reflector.run()):
        await settled()
        assert rig.sizes() == {"a": 1}
        rig.cluster.put(THINGS, thing("b", 2))
        rig.cluster.put(THINGS, thing("a", 3))
        rig.cluster.drop(THINGS, B)
        await settled()
    assert rig.sizes() == {"a": 3}
    assert rig.told == [(None, 1), (None, 2), (1, 3), (2, None)]
    assert rig.store.resource_version() == str(rig.cluster.version)
    assert rig.reflector.unready_reason == ""


@virtual
async def test_a_bookmark_moves_the_version_and_calls_no_handler() -> None:
    rig = Rig()
    async with running(rig.reflector.run()):
        await settled()
        rig.cluster.bookmark(THINGS)
        await settled()
        assert rig.store.resource_version() == str(rig.cluster.version)
        assert rig.told == []


@virtual
async def test_a_stream_that_ends_is_watched_on_without_a_list_and_without_a_pause() -> None:
    rig = Rig()
    async with running(rig.reflector.run()):
        await settled()
        rig.cluster.put(THINGS, thing("a", 1))
        await settled()
        began = now_s()
        rig.cluster.cut()
        rig.cluster.put(THINGS, thing("a", 2))
        await settled()
        assert rig.sizes() == {"a": 2}
        assert now_s() == began
        assert len(rig.cluster.calls_of("list")) == 1
        assert rig.restarts("ended") == 1
        assert rig.told == [(None, 1), (1, 2)]


@virtual
async def test_streams_that_end_at_once_are_not_asked_for_in_a_tight_loop() -> None:
    rig = Rig()
    async with running(rig.reflector.run()):
        for _ in range(10):
            await settled()
            rig.cluster.cut()
        await asyncio.sleep(1.0)
        assert len(rig.cluster.calls_of("watch")) <= 4


@virtual
async def test_what_happened_while_the_version_expired_is_delivered_after_a_list() -> None:
    rig = Rig()
    for name, size in (("a", 1), ("b", 2), ("c", 3)):
        rig.cluster.put(THINGS, thing(name, size))
    async with running(rig.reflector.run()):
        await settled()
        rig.told.clear()
        rig.cluster.delivering.clear()
        rig.cluster.drop(THINGS, B)
        rig.cluster.put(THINGS, thing("c", 30))
        rig.cluster.put(THINGS, thing("d", 4))
        rig.cluster.forget_history()
        rig.cluster.cut()
        rig.cluster.delivering.set()
        await asyncio.sleep(5.0)
        assert rig.sizes() == {"a": 1, "c": 30, "d": 4}
        assert sorted(rig.told, key=str) == [(2, None), (3, 30), (None, 4)]  # and not a word about a
        assert rig.restarts("expired") == 1
        rig.cluster.put(THINGS, thing("a", 10))
        await settled()
        assert rig.sizes()["a"] == 10


@virtual
async def test_an_object_made_again_under_its_old_name_is_two_changes() -> None:
    rig = Rig()
    rig.cluster.put(THINGS, thing("a", 1))
    async with running(rig.reflector.run()):
        await settled()
        rig.cluster.delivering.clear()
        rig.cluster.drop(THINGS, A)
        rig.cluster.put(THINGS, thing("a", 2))
        rig.cluster.forget_history()
        rig.cluster.cut()
        rig.cluster.delivering.set()
        await asyncio.sleep(5.0)
        assert rig.told == [(None, 1), (1, None), (None, 2)]


@pytest.mark.parametrize(
    "error",
    [Unreachable("no answer"), ServerError("etcd is away"), Forbidden("may not list"), NotFound("no such kind")],
)
def test_what_goes_wrong_is_retried_for_ever_and_named_meanwhile(error: ClusterError) -> None:
    @virtual
    async def retried() -> None:
        rig = Rig()
        async with running(rig.reflector.run()):
            await settled()
            assert rig.reflector.unready_reason == ""
            rig.cluster.errors["watch"] = [error] * 50
            rig.cluster.put(THINGS, thing("a", 1))
            rig.cluster.cut(error)
            await asyncio.sleep(100.0)
            assert rig.reflector.unready_reason == f"things.tests.holdfast.dev: {error}"
            assert len(rig.cluster.errors["watch"]) > 40  # with growing pauses: no storm
            rig.cluster.errors.clear()
            rig.cluster.put(THINGS, thing("b", 2))
            await asyncio.sleep(30.0)
            assert rig.reflector.unready_reason == ""
            assert rig.sizes() == {"a": 1, "b": 2}
            assert len(rig.cluster.calls_of("list")) == 1

    retried()


@virtual
async def test_pauses_grow_to_half_a_minute_and_not_beyond() -> None:
    rig = Rig()
    attempts: list[float] = []
    rig.cluster.errors["list"] = [Unreachable("no answer")] * 30
    async with running(rig.reflector.run()):
        for _ in range(4000):
            calls = len(rig.cluster.calls_of("list"))
            if calls > len(attempts):
                attempts.append(now_s())
            await asyncio.sleep(0.1)
    pauses = [later - earlier for earlier, later in pairwise(attempts)]
    assert pauses[0] < 1.0
    assert max(pauses) > 14.0
    assert all(pause < 31.0 for pause in pauses)
    assert min(pauses[8:]) > 14.0


@virtual
async def test_pauses_are_short_again_after_an_event() -> None:
    rig = Rig()
    async with running(rig.reflector.run()):
        await settled()
        rig.cluster.errors["watch"] = [Unreachable("no answer")] * 8
        rig.cluster.cut(Unreachable("cut off"))
        await asyncio.sleep(300.0)
        rig.cluster.put(THINGS, thing("a", 1))
        await settled()
        rig.cluster.cut(Unreachable("cut off"))
        await asyncio.sleep(1.0)
        rig.cluster.put(THINGS, thing("a", 2))
        await settled()
        assert rig.sizes() == {"a": 2}


@virtual
async def test_versions_that_expire_again_and_again_are_not_listed_in_a_tight_loop() -> None:
    rig = Rig()
    rig.cluster.errors["watch"] = [Expired("too old")] * 1000
    async with running(rig.reflector.run()):
        await asyncio.sleep(60.0)
    assert 3 <= len(rig.cluster.calls_of("list")) < 20


@virtual
async def test_the_first_list_raises_what_is_wrong() -> None:
    rig = Rig()
    rig.cluster.errors["list"] = [Forbidden("list things: holdfast may not")]
    assert rig.reflector.unready_reason == "things.tests.holdfast.dev: not listed yet"
    with pytest.raises(Forbidden, match="holdfast may not"):
        await rig.reflector.sync()
    await rig.reflector.sync()
    assert rig.reflector.unready_reason == ""


@virtual
async def test_after_the_first_list_it_only_watches() -> None:
    rig = Rig()
    rig.cluster.put(THINGS, thing("a", 1))
    await rig.reflector.sync()
    async with running(rig.reflector.run()):
        rig.cluster.put(THINGS, thing("b", 2))
        await settled()
    assert rig.sizes() == {"a": 1, "b": 2}
    assert len(rig.cluster.calls_of("list")) == 1


@virtual
async def test_one_namespace_is_another_ones_stranger() -> None:
    rig = Rig(namespace="ns")
    other = Key("other", "a")
    rig.store.put(Thing(metadata=(await ScriptedCluster().create(THINGS, thing("a"), namespace="other")).metadata))
    rig.cluster.put(THINGS, thing("a", 1))
    rig.cluster.put(THINGS, thing("z", 9), namespace="other")
    async with running(rig.reflector.run()):
        await settled()
        assert set(rig.store.keys()) == {A, other}  # nothing of another namespace was taken in or thrown out
        rig.cluster.put(THINGS, thing("c", 3))
        await settled()
        assert rig.store.get(C) is not None
    assert rig.store.resource_version("ns") == str(rig.cluster.version)
    assert rig.store.resource_version("other") == ""


@virtual
async def test_an_error_names_the_namespace() -> None:
    rig = Rig(namespace="ns")
    assert rig.reflector.unready_reason == "things.tests.holdfast.dev in ns: not listed yet"


@virtual
async def test_a_handler_that_raises_is_logged_and_counted_and_the_others_get_the_event() -> None:
    rig = Rig()

    def fussy(old: Thing | None, new: Thing | None) -> None:
        if new and new.metadata.name == "a":
            raise RuntimeError("what is this?")

    rig.reflector = Reflector(
        rig.cluster, THINGS, rig.store, handlers=[fussy, rig._handle], metrics=rig.metrics, random=Random(1)
    )
    with capture_logs() as logs:
        async with running(rig.reflector.run()):
            await settled()
            rig.cluster.put(THINGS, thing("a", 1))
            rig.cluster.put(THINGS, thing("b", 2))
            await settled()
    assert rig.sizes() == {"a": 1, "b": 2}
    assert rig.told == [(None, 1), (None, 2)]  # the other handler heard all of it
    assert [(line["event"], line["key"]) for line in logs] == [("change not taken in", "ns/a")]
    assert rig.metrics.registry.get_sample_value("holdfast_handler_errors_total", {"resource": str(THINGS)}) == 1


@virtual
async def test_an_object_that_an_index_cannot_read_is_left_out_and_the_others_are_not() -> None:
    rig = Rig()

    def fussy(obj: Thing) -> Iterable[str]:
        return (str(1 // obj.spec.size),)

    rig.store.index("fussy", fussy)
    rig.cluster.put(THINGS, thing("a", 0))
    rig.cluster.put(THINGS, thing("b", 1))
    with capture_logs() as logs:
        async with running(rig.reflector.run()):
            await settled()
            rig.cluster.put(THINGS, thing("a", 1))
            await settled()
    assert rig.sizes() == {"a": 1, "b": 1}
    assert rig.told == [(None, 1), (None, 1)]
    assert len(logs) == 1


@virtual
async def test_random_faults_never_leave_the_store_behind() -> None:
    random = Random(7)
    rig = Rig()
    faults = [None, Unreachable("cut"), ServerError("ill")]
    async with running(rig.reflector.run()):
        for step in range(400):
            name = random.choice("abcdef")
            if rig.cluster.all_of(THINGS) and random.random() < 0.3:
                meta = random.choice(rig.cluster.all_of(THINGS))["metadata"]
                rig.cluster.drop(THINGS, Key("ns", meta["name"]))
            else:
                rig.cluster.put(THINGS, thing(name, step))
            if random.random() < 0.1:
                rig.cluster.cut(random.choice(faults))
            if random.random() < 0.05:
                rig.cluster.forget_history()
            await asyncio.sleep(random.random())
        await asyncio.sleep(120.0)
        truth = {obj["metadata"]["name"]: obj["spec"]["size"] for obj in rig.cluster.all_of(THINGS)}
        assert rig.sizes() == truth
        counted: dict[int, int] = {}
        for old, new in rig.told:  # every state was told once as new, and once as old when it went
            if old is not None:
                counted[old] -= 1
            if new is not None:
                counted[new] = counted.get(new, 0) + 1
        assert {size for size, count in counted.items() if count} == set(truth.values())
