"""Azure: a scheduled event of type Preempt names the machine, at least 30 s before it is taken back."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

from holdfast.node.notice.metadata import MetadataServer, PreemptionNotice, unexpected, unreadable
from holdfast.times import parse_optional_time

METADATA = {"Metadata": "true"}
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
PREEMPT = "Preempt"
CURRENT = ("Scheduled", "Started")
# The first question switches the events of this machine on, which takes Azure up to two minutes.
FIRST_ANSWER_S = 150.0


class ScheduledEvent(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    event_type: str
    event_status: str = ""
    resources: tuple[str, ...] = ()
    """The machines that are meant: all machines of a scale set see the events of each."""
    not_before: str = ""
    """Empty once the event has started."""


class ScheduledEvents(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    events: tuple[ScheduledEvent, ...]


class Azure:
    cloud = "Azure"
    provider = "azure"
    notice_s = 30.0
    interval_s = 1.0

    def __init__(self, server: MetadataServer) -> None:
        self._server = server
        self._name = ""
        self._is_answered = False

    async def is_here(self) -> bool:
        answer = await self._server.ask("GET", NAME, headers=METADATA)
        return answer.status == 200 and _machine_name(answer.body) != ""

    async def current_notice(self) -> PreemptionNotice | None:
        name = await self._own_name()
        answer_s = 5.0 if self._is_answered else FIRST_ANSWER_S
        answer = await self._server.ask("GET", EVENTS, headers=METADATA, answer_s=answer_s)
        if answer.status != 200:
            raise unexpected(answer, EVENTS)
        try:
            events = msgspec.json.decode(answer.body, type=ScheduledEvents).events
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise unreadable(answer, EVENTS, "a list of events") from None
        self._is_answered = True
        meant = [event for event in events if is_preemption_of(event, name)]
        if not meant:
            return None
        times = [_time(event.not_before) for event in meant]
        named = [time for time in times if time is not None]
        return PreemptionNotice(cloud=self.cloud, deadline=min(named, default=None))

    async def _own_name(self) -> str:
        if not self._name:
            answer = await self._server.ask("GET", NAME, headers=METADATA)
            if answer.status != 200:
                raise unexpected(answer, NAME)
            self._name = _machine_name(answer.body)
            if not self._name:
                raise unreadable(answer, NAME, "the name of this machine")
        return self._name


def is_preemption_of(event: ScheduledEvent, name: str) -> bool:
    """Whether the event takes this machine back, and is neither over nor cancelled."""
    is_current = not event.event_status or event.event_status in CURRENT
    return event.event_type == PREEMPT and is_current and name.lower() in (each.lower() for each in event.resources)


def _time(text: str) -> datetime | None:
    """NotBefore is a date as in HTTP headers ("Mon, 19 Sep 2016 18:29:47 GMT"); newer versions have RFC 3339."""
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return parse_optional_time(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)  # -0000 has no zone


def _machine_name(body: bytes) -> str:
    name = body.decode(errors="replace").strip()
    return name if name.isprintable() and " " not in name and len(name) <= 256 else ""
