"""The lines of `holdfast up`: what happens to jobs and workloads, as it happens."""

import asyncio
from datetime import datetime
from typing import Any

import typer

from holdfast.cli.errors import printable
from holdfast.cli.resource_args import find_kind
from holdfast.cli.session import follow
from holdfast.cluster.protocol import JSON, Change, Cluster, Event, Listing
from holdfast.cluster.resources import RawObject
from holdfast.runtime.process import utc_now
from holdfast.times import parse_optional_time

# The kinds whose events are printed.
REPORTED_KINDS = ("TrainingJob", "GPUWorkload", "CheckpointBackup", "SpotInstanceJob", "ProvisionedInstance")


async def print_what_happens(cluster: Cluster) -> None:
    """Print a line for each event, and for each state of a TrainingJob that has no event."""
    await asyncio.gather(
        _print_lines(cluster, "events", EventLines()), _print_lines(cluster, "trainingjobs", StateLines())
    )


async def _print_lines(cluster: Cluster, kind: str, printer: "EventLines | StateLines") -> None:
    async for step in follow(cluster, find_kind(kind).resource):
        for line in printer.lines(step):
            typer.echo(line)


class EventLines:
    """Selects new events by their counts. A repeated event raises the count of an existing event."""

    def __init__(self) -> None:
        self._counts: dict[str, int] | None = None

    def lines(self, step: Listing[RawObject] | Event[RawObject]) -> list[str]:
        """The lines for new events. The run that wrote the events of the first listing has printed them already."""
        if isinstance(step, Listing):
            counts = {each.metadata.uid: _count(each) for each in step.items}
            before, self._counts = self._counts, counts
            new_events = [] if before is None else [each for each in step.items if self._is_new(each, before)]
        elif step.object is None or self._counts is None:
            return []
        elif step.change is Change.DELETED:  # events expire after an hour
            self._counts.pop(step.object.metadata.uid, None)
            return []
        else:
            new_events = [step.object] if self._is_new(step.object, self._counts) else []
            self._counts[step.object.metadata.uid] = _count(step.object)
        return [line for each in new_events if (line := event_line(each.document))]

    @staticmethod
    def _is_new(event: RawObject, counts: dict[str, int]) -> bool:
        return _count(event) > counts.get(event.metadata.uid, 0)


class StateLines:
    """Tells when a TrainingJob runs, is suspended or has completed: no event says so."""

    def __init__(self) -> None:
        self._states: dict[str, str] | None = None

    def lines(self, step: Listing[RawObject] | Event[RawObject]) -> list[str]:
        """The lines for new states. Those of the first listing were printed by the run before."""
        if isinstance(step, Listing):
            known, self._states = self._states, {each.metadata.uid: _state(each) for each in step.items}
            changed = [
                each for each in step.items if known is not None and known.get(each.metadata.uid) != _state(each)
            ]
        elif step.object is None or self._states is None:
            return []
        elif step.change is Change.DELETED:
            self._states.pop(step.object.metadata.uid, None)
            return []
        else:
            uid, state = step.object.metadata.uid, _state(step.object)
            changed = [step.object] if self._states.get(uid) != state else []
            self._states[uid] = state
        return [line for each in changed if (line := state_line(each))]


def _count(event: RawObject) -> int:
    return int(event.document.get("count") or 1)


def _state(job: RawObject) -> str:
    return str((job.document.get("status") or {}).get("state", ""))


def event_line(event: JSON) -> str:
    """The line for an event; empty for events of the parts of a job."""
    involved = event.get("involvedObject") or {}
    if involved.get("kind") not in REPORTED_KINDS:
        return ""
    at = parse_optional_time(event.get("lastTimestamp")) or utc_now()
    return _line(at, involved.get("namespace", ""), involved.get("name", ""), event.get("message", ""))


def state_line(job: RawObject) -> str:
    """The line for the state that a job has come to; empty where an event tells it."""
    status = job.document.get("status") or {}
    match _state(job):
        case "Running":
            count = (status.get("workers") or {}).get("desired", 0)
            said = "running with 1 worker" if count == 1 else f"running with {count} workers"
        case "Suspended":
            said = status.get("message", "")
        case "Completed":
            said = f"finished after {status.get('duration', '')}: {status.get('message', '')}"
        case _:
            return ""
    return _line(utc_now(), job.metadata.namespace, job.metadata.name, said)


def _line(at: datetime, namespace: str, name: str, said: Any) -> str:
    whose = name if namespace in ("", "default") else f"{namespace}/{name}"
    return printable(f"{at.astimezone():%H:%M} {whose}: {' '.join(str(said).split())}")
