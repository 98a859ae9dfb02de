"""Events tell what happened lately: the API server forgets each an hour after it was last told, and so do we."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from holdfast.cluster.embedded.ledger import ObjectTable
from holdfast.cluster.errors import ServerError
from holdfast.cluster.protocol import JSON
from holdfast.planning.times import parse_time

EVENTS = "events"
EVENT_LIFE = timedelta(hours=1)
SWEEP_S = 300.0

log = structlog.get_logger(__name__)


async def expire_events(ledger: ObjectTable, now: Callable[[], datetime]) -> None:
    """Sweep, for ever."""
    while True:
        await asyncio.sleep(SWEEP_S)
        for event in list(ledger.list_staged(EVENTS)):
            if last_seen(event.json()) < now() - EVENT_LIFE:
                ledger.remove(event)
        try:
            await ledger.flushed()
        except ServerError as error:
            log.warning("old events could not be removed", error=str(error), retry_s=SWEEP_S)


def last_seen(event: JSON) -> datetime:
    """The latest of the times that an event carries."""
    told = (
        event["metadata"]["creationTimestamp"],
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("series", {}).get("lastObservedTime"),
    )
    return max(parse_time(time) for time in told if time)
