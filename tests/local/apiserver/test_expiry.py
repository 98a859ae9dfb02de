"""Old events go by themselves."""

import asyncio
from datetime import datetime

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON
from holdfast.local.apiserver import garbage_collector
from holdfast.local.apiserver.garbage_collector import expire_events, last_seen
from holdfast.local.apiserver.objects import ObjectRef

from .clock import Clock
from .test_object_table import ObjectTableLab

EARLY, LATE = "2026-01-02T03:00:00Z", "2026-01-02T04:00:00Z"


@pytest.mark.parametrize(
    "more",
    [{"lastTimestamp": LATE}, {"eventTime": "2026-01-02T04:00:00.000000Z"}, {"series": {"lastObservedTime": LATE}}],
)
def test_an_event_is_as_old_as_its_last_repeat(more: JSON) -> None:
    event = {"metadata": {"creationTimestamp": EARLY}}
    assert last_seen(event) == datetime.fromisoformat(EARLY)
    assert last_seen({**event, **more}) == datetime.fromisoformat(LATE)


def event(name: str, created: str) -> JSON:
    metadata = {"name": name, "namespace": "default", "uid": name, "creationTimestamp": created}
    return {"apiVersion": "v1", "kind": "Event", "metadata": metadata}


async def test_only_events_older_than_an_hour_are_removed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collector, "SWEEP_S", 0.01)
    desk = ObjectTableLab()
    desk.ledger.put("events", event("old", "2026-01-02T02:04:04Z"))
    desk.ledger.put("events", event("new", "2026-01-02T02:04:06Z"))
    desk.ledger.put("configmaps", event("other", "2020-01-02T00:00:00Z"))
    await desk.ledger.flushed()
    desk.disk.full_after = 3
    sweeping = asyncio.create_task(expire_events(desk.ledger, clock))
    await asyncio.wait_for(desk.disk.refused.wait(), 60)
    desk.disk.full_after = 4
    removed = asyncio.Event()
    desk.listener = lambda writes: removed.set()
    await asyncio.wait_for(removed.wait(), 60)
    sweeping.cancel()
    await asyncio.gather(sweeping, return_exceptions=True)
    assert desk.ledger.committed(ObjectRef("events", Key("default", "old"))) is None
    assert [each.meta.name for each in desk.ledger.list_committed("events")] == ["new"]
    assert len(list(desk.ledger.list_committed("configmaps"))) == 1
