"""Where a cloud has machines to spare: which zone is asked next, and how long those rest that had none.

A pool is what a cloud's stock is counted by: machines of one type and GPU in one zone, spot or not. All jobs of an
operator share a refusal that one of them got. Nothing is stored over a restart: the first refusal shows it again.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from holdfast.api.spotinstancevm import SpotInstanceVM
from holdfast.times import format_time

# template-zone: machines of this template in this zone.
Scope: TypeAlias = Literal["zone", "region", "global", "template", "template-zone"]

FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 600.0
# Pauses differ by up to this share, so that pools that were refused together are not asked together.
JITTER = 0.2
# The next refusal so long after a pause counts as the first one.
FORGOTTEN_AFTER_S = 3600.0
# How long a zone that has taken a machine back is asked after the others.
TAKEN_BACK_S = 600.0
# A probe whose end is never reported does not hold up the others for ever.
PROBE_S = 900.0
PROBE_RECHECK_S = 15.0


class MachineRequest(Struct, frozen=True, kw_only=True):
    """A machine as a template describes it, and the zones in which it may be made, in the order of the template."""

    template: str
    """Another one once the template is changed: what was wrong with it may be mended."""
    project: str
    zones: tuple[str, ...]
    machine_type: str
    gpu_type: str = ""
    spot: bool = True


class ZoneRefusal(Struct, frozen=True, kw_only=True):
    """The cloud made no machine, or one that was of no use, for a reason that holds in `scope`."""

    scope: Scope
    reason: str
    said: str


class ZoneChoice(Struct, frozen=True):
    zone: str


class Resting(Struct, frozen=True):
    """No zone is to be asked before `until`. The message says why; asked again, it is the same."""

    until: datetime
    reason: str
    message: str


class _RefusedScope(Struct, frozen=True, kw_only=True):
    """What a refusal rules out: empty fields hold for all values."""

    scope: Scope
    project: str
    where: str = ""
    machine_type: str = ""
    gpu_type: str = ""
    spot: bool = True
    template: str = ""


class _Pause(Struct, frozen=True, kw_only=True):
    refusals: int
    asked_in: str
    asked_at: datetime
    until: datetime
    reason: str
    said: str
    probe: str = ""
    """Who asks again, once the pause is over; until the answer comes nobody else does."""
    probe_at: datetime | None = None

    def is_probed(self, now: datetime, by: str) -> bool:
        """Whether somebody else asks at the moment."""
        return self.is_current(now) and self.probe != by

    def is_current(self, now: datetime) -> bool:
        return self.probe_at is not None and now < self.probe_at + timedelta(seconds=PROBE_S)


def machine_request(template: SpotInstanceVM, *, spot: bool) -> MachineRequest:
    spec, meta = template.spec, template.metadata
    return MachineRequest(
        template=f"{meta.uid}/{meta.generation}",
        project=spec.gcp.project,
        zones=(spec.gcp.zone, *spec.zones),
        machine_type=spec.gcp.machine_type,
        gpu_type=spec.gpu.type if spec.gpu is not None else "",
        spot=spot,
    )


class MachinePools:
    """`jitter` returns a number from 0 to 1. `by` is who asks: the same at each call for one machine."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._pauses: dict[_RefusedScope, _Pause] = {}
        self._taken_back: dict[_RefusedScope, datetime] = {}

    def choose(self, request: MachineRequest, now: datetime, *, by: str) -> ZoneChoice | Resting:
        """The first zone that may be asked. Of those who ask where a pause has just ended, one is sent ahead."""
        self._forget(now)
        for zone in self._in_order(request, now):
            pauses = [(place, self._pauses[place]) for place in _places(request, zone) if place in self._pauses]
            if all(now >= pause.until and not pause.is_probed(now, by) for _, pause in pauses):
                for place, pause in pauses:
                    if not pause.is_current(now):  # asked again, it gets no more time
                        self._pauses[place] = structs.replace(pause, probe=by, probe_at=now)
                return ZoneChoice(zone)
        return self._resting(request, now, by)

    def launched(self, request: MachineRequest, zone: str) -> None:
        """The zone had a machine to spare. Whether it is of use is not known yet."""
        for place in _places(request, zone):
            if place.scope != "template-zone":
                self._pauses.pop(place, None)

    def ready(self, request: MachineRequest, zone: str) -> None:
        """A machine of the template has got ready there."""
        self._pauses.pop(_place(request, zone, "template-zone"), None)

    def refused(self, request: MachineRequest, zone: str, refusal: ZoneRefusal, now: datetime, *, by: str) -> None:
        self.released(by)
        self._forget(now)
        place = _place(request, zone, refusal.scope)
        before = self._pauses.get(place)
        if before is not None and now < before.until:
            return  # asked before the refusal that began the pause was known
        refusals = before.refusals + 1 if before is not None else 1
        self._pauses[place] = _Pause(
            refusals=refusals,
            asked_in=zone,
            asked_at=now,
            until=now + timedelta(seconds=self._pause_s(refusals)),
            reason=refusal.reason,
            said=refusal.said,
        )

    def released(self, by: str) -> None:
        """Whoever was sent ahead will not bring an answer."""
        for place, pause in self._pauses.items():
            if pause.probe == by:
                self._pauses[place] = structs.replace(pause, probe="", probe_at=None)

    def taken_back(self, request: MachineRequest, zone: str, now: datetime) -> None:
        """The cloud has taken a machine of this pool back."""
        self._taken_back[_place(request, zone, "zone")] = now

    def _forget(self, now: datetime) -> None:
        """Also what would be in the future, since the clock was put back: it would hold for as long."""
        oldest, latest = now - timedelta(seconds=FORGOTTEN_AFTER_S), now + timedelta(seconds=FIRST_PAUSE_S)
        self._pauses = {
            place: pause for place, pause in self._pauses.items() if pause.until > oldest and pause.asked_at < latest
        }
        self._taken_back = {place: at for place, at in self._taken_back.items() if oldest < at < latest}

    def _in_order(self, request: MachineRequest, now: datetime) -> list[str]:
        def taken_at(zone: str) -> float:
            at = self._taken_back.get(_place(request, zone, "zone"))
            return at.timestamp() if at is not None and now < at + timedelta(seconds=TAKEN_BACK_S) else 0.0

        return sorted(request.zones, key=taken_at)

    def _pause_s(self, refusals: int) -> float:
        doublings = min(refusals - 1, 16)
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**doublings) * (1 - JITTER * self._jitter())

    def _resting(self, request: MachineRequest, now: datetime, by: str) -> Resting:
        # Of each zone, what rules it out longest.
        blocking = [max(self._blocking(request, zone, now, by), key=_until) for zone in request.zones]
        first = min((pause for _, pause in blocking), key=lambda pause: pause.until)
        if first.until > now:
            until, when = first.until, f"next try at {format_time(first.until)}"
        else:
            until, when = now + timedelta(seconds=PROBE_RECHECK_S), f"another job asks {first.asked_in} again now"
        said = "; ".join(_text(place, pause) for place, pause in dict(blocking).items())
        return Resting(until, first.reason, f"no machine to be had: {said}; {when}")

    def _blocking(
        self, request: MachineRequest, zone: str, now: datetime, by: str
    ) -> Iterator[tuple[_RefusedScope, _Pause]]:
        for place in _places(request, zone):
            pause = self._pauses.get(place)
            if pause is not None and (now < pause.until or pause.is_probed(now, by)):
                yield place, pause


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


def _places(request: MachineRequest, zone: str) -> tuple[_RefusedScope, ...]:
    return (
        _place(request, zone, "zone"),
        _place(request, zone, "region"),
        _place(request, zone, "global"),
        _place(request, zone, "template"),
        _place(request, zone, "template-zone"),
    )


def _place(request: MachineRequest, zone: str, scope: Scope) -> _RefusedScope:
    if scope in ("template", "template-zone"):
        where = zone if scope == "template-zone" else ""
        return _RefusedScope(scope=scope, project=request.project, where=where, template=request.template)
    where = {"zone": zone, "region": region_of(zone), "global": ""}[scope]
    return _RefusedScope(
        scope=scope,
        project=request.project,
        where=where,
        machine_type=request.machine_type,
        gpu_type=request.gpu_type,
        spot=request.spot,
    )


def _until(blocking: tuple[_RefusedScope, _Pause]) -> datetime:
    return blocking[1].until


def _text(place: _RefusedScope, pause: _Pause) -> str:
    what = {
        "zone": place.where,
        "region": f"region {place.where}",
        "global": f"project {place.project}",
        "template": "this template",
        "template-zone": place.where,
    }[place.scope]
    where = "" if place.scope in ("zone", "template-zone") else f" in {pause.asked_in}"
    return f"{what} (asked{where} at {format_time(pause.asked_at)}: {pause.said})"
