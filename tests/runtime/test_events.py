"""Events are written beside the work, merged, limited, and never a reason to fail."""

import asyncio

import pytest
from structlog.testing import capture_logs

from holdfast.api.meta import Key, ObjectMeta
from holdfast.cluster.errors import ClusterError, Forbidden, NotLeading, Unreachable
from holdfast.cluster.protocol import JSON
from holdfast.runtime.events import BURST, EVENTS, MEMORY, REFILL_S, WAITING_LIMIT, Recorder
from holdfast.runtime.metrics import Metrics
from tests.runtime.scripted import ScriptedCluster
from tests.runtime.things import HOSTS, THINGS, A, B, Part, cached, noon, running
from tests.runtime.virtual import settled, virtual

THING_A = cached(A, uid="uid-a")
THING_B = cached(B, uid="uid-b")


class Rig:
    def __init__(self) -> None:
        self.cluster = ScriptedCluster()
        self.metrics = Metrics()
        self.recorder = Recorder(self.cluster, instance="pod_1", now=noon, metrics=self.metrics)

    def events(self) -> list[JSON]:
        return self.cluster.all_of(EVENTS)

    def counts(self) -> dict[str, int]:
        return {event["message"]: event["count"] for event in self.events()}

    def dropped(self, reason: str) -> float:
        return self.metrics.registry.get_sample_value("holdfast_events_dropped_total", {"reason": reason}) or 0.0


@virtual
async def test_an_event_has_object_reason_time_and_reporter() -> None:
    rig = Rig()
    async with running(rig.recorder.run()):
        rig.recorder.warning(THINGS, THING_A, "Stockout", "no machine in any zone")
        await settled()
    (event,) = rig.events()
    meta = event.pop("metadata")
    assert meta["name"].startswith("a.")
    assert meta["namespace"] == "ns"
    assert event == {
        "involvedObject": {
            "apiVersion": "tests.holdfast.dev/v1",
            "kind": "Thing",
            "namespace": "ns",
            "name": "a",
            "uid": "uid-a",
        },
        "type": "Warning",
        "reason": "Stockout",
        "message": "no machine in any zone",
        "firstTimestamp": "2026-01-02T12:00:00Z",
        "lastTimestamp": "2026-01-02T12:00:00Z",
        "count": 1,
        "source": {"component": "holdfast"},
        "reportingComponent": "holdfast",
        "reportingInstance": "pod_1",
    }


@virtual
async def test_an_object_of_no_namespace_has_its_events_in_default() -> None:
    rig = Rig()
    async with running(rig.recorder.run()):
        rig.recorder.normal(HOSTS, Part(metadata=ObjectMeta(name="h", uid="u")), "Ready", "it is")
        await settled()
    (event,) = rig.events()
    assert event["metadata"]["namespace"] == "default"
    assert event["type"] == "Normal"


@virtual
async def test_a_repeat_raises_the_count_and_moves_the_last_time() -> None:
    rig = Rig()
    async with running(rig.recorder.run()):
        for _ in range(3):
            rig.recorder.normal(THINGS, THING_A, "Waiting", "for a machine")
            await asyncio.sleep(60.0)
    (event,) = rig.events()
    assert event["count"] == 3
    assert event["firstTimestamp"] == "2026-01-02T12:00:00Z"
    assert event["lastTimestamp"] == "2026-01-02T12:02:00Z"
    assert len(rig.cluster.calls_of("create")) == 1
    assert len(rig.cluster.calls_of("patch")) == 2


@virtual
async def test_repeats_that_come_before_the_first_is_written_cost_one_request() -> None:
    rig = Rig()
    for _ in range(50):
        rig.recorder.normal(THINGS, THING_A, "Waiting", "for a machine")
    async with running(rig.recorder.run()):
        await settled()
    assert rig.counts() == {"for a machine": 50}
    assert len(rig.cluster.calls) == 1


@virtual
async def test_what_differs_in_anything_is_another_event() -> None:
    rig = Rig()
    async with running(rig.recorder.run()):
        rig.recorder.normal(THINGS, THING_A, "Waiting", "one")
        rig.recorder.normal(THINGS, THING_A, "Waiting", "two")
        rig.recorder.normal(THINGS, THING_A, "Starting", "one")
        rig.recorder.warning(THINGS, THING_A, "Waiting", "one")
        rig.recorder.normal(THINGS, THING_B, "Waiting", "one")
        rig.recorder.normal(THINGS, cached(A, uid="made again"), "Waiting", "one")
        await settled()
    assert len(rig.events()) == 6
    assert {event["count"] for event in rig.events()} == {1}


@virtual
async def test_a_repeat_of_an_event_that_the_server_forgot_is_written_anew_with_its_count() -> None:
    rig = Rig()
    async with running(rig.recorder.run()):
        rig.recorder.normal(THINGS, THING_A, "Waiting", "still")
        await settled()
        (event,) = rig.events()
        rig.cluster.drop(EVENTS, Key("ns", event["metadata"]["name"]))
        for _ in range(2):
            rig.recorder.normal(THINGS, THING_A, "Waiting", "still")
            await settled()
    assert rig.counts() == {"still": 3}


@virtual
async def test_one_object_gets_a_burst_and_then_one_event_in_five_minutes() -> None:
    rig = Rig()
    async with running(rig.recorder.run()):
        for number in range(BURST + 10):
            rig.recorder.normal(THINGS, THING_A, "Chatty", f"number {number}")
        rig.recorder.normal(THINGS, THING_B, "Quiet", "another object")
        await settled()
        assert len(rig.events()) == BURST + 1
        assert rig.dropped("rate") == 10
        await asyncio.sleep(REFILL_S + 1)
        for number in range(2):
            rig.recorder.normal(THINGS, THING_A, "Chatty", f"later {number}")
        await settled()
        assert len(rig.events()) == BURST + 2
        assert rig.dropped("rate") == 11


@virtual
async def test_more_than_can_wait_is_dropped_and_counted() -> None:
    rig = Rig()
    for number in range(WAITING_LIMIT + 5):
        rig.recorder.normal(THINGS, cached(A, uid=f"uid-{number}"), "Many", "at once")
    rig.recorder.normal(THINGS, cached(A, uid="uid-0"), "Many", "at once")  # a repeat takes no room
    assert rig.dropped("overflow") == 5
    async with running(rig.recorder.run()):
        await asyncio.sleep(1.0)
        assert len(rig.events()) == WAITING_LIMIT


@virtual
async def test_memory_is_bounded_and_a_forgotten_note_is_a_new_event() -> None:
    rig = Rig()
    async with running(rig.recorder.run()):
        rig.recorder.normal(THINGS, cached(A, uid="first"), "Said", "once")
        await settled()
        for number in range(MEMORY):
            rig.recorder.normal(THINGS, cached(A, uid=f"uid-{number}"), "Said", "by many")
            if number % 500 == 0:
                await asyncio.sleep(1.0)
        await asyncio.sleep(1.0)
        rig.recorder.normal(THINGS, cached(A, uid="first"), "Said", "once")
        await settled()
    assert [event["count"] for event in rig.events() if event["message"] == "once"] == [1, 1]


@pytest.mark.parametrize("error", [Forbidden("the namespace is going"), Unreachable("no answer"), NotLeading("no")])
def test_a_write_that_fails_is_logged_and_counted_and_the_next_is_written(error: ClusterError) -> None:
    @virtual
    async def fails() -> None:
        rig = Rig()
        rig.cluster.errors["create"] = [error]
        with capture_logs() as logs:
            async with running(rig.recorder.run()):
                for message in ("lost", "kept"):
                    rig.recorder.normal(THINGS, THING_A, "Said", message)
                    await settled()
        assert rig.counts() == {"kept": 1}
        assert rig.dropped("error") == 1
        assert [(line["log_level"], line["error"], line["key"]) for line in logs] == [("warning", str(error), "ns/a")]

    fails()


@virtual
async def test_recording_never_waits_for_a_server_that_does_not_answer() -> None:
    rig = Rig()

    async def no_answer(*_: object, **__: object) -> Part:
        await asyncio.Event().wait()
        raise AssertionError

    rig.cluster.create = no_answer  # type: ignore[method-assign,assignment]  # it accepts and says nothing
    async with running(rig.recorder.run()):
        for number in range(10):
            rig.recorder.normal(THINGS, THING_A, "Said", str(number))
            await settled()


@pytest.mark.parametrize("length", [1023, 1024, 1025, 5000])
def test_a_long_message_is_cut(length: int) -> None:
    @virtual
    async def cut() -> None:
        rig = Rig()
        rig.recorder.normal(THINGS, THING_A, "Said", "é" * length)
        async with running(rig.recorder.run()):
            await settled()
        (event,) = rig.events()
        assert len(event["message"]) == min(length, 1024)
        assert event["message"].endswith("…") == (length > 1024)

    cut()


@virtual
async def test_stopping_writes_what_waits_and_then_ends() -> None:
    rig = Rig()
    writing = asyncio.create_task(rig.recorder.run())
    await settled()
    for number in range(20):
        rig.recorder.normal(THINGS, THING_A, "Said", str(number))
    rig.recorder.stop()
    await writing
    assert len(rig.events()) == 20
