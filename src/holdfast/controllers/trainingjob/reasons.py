"""Asks the cluster's Events why workers do not start, where neither their pods nor their Job say it."""

import asyncio
from collections.abc import Iterable, Mapping

import structlog
from msgspec import Struct

from holdfast.api.builtin import CoreEvent, Job, Pod
from holdfast.api.meta import Object
from holdfast.cluster.errors import ClusterError
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import EVENTS
from holdfast.planning.times import parse_time
from holdfast.planning.trainingjob.waiting import (
    creation_refused_text,
    is_starting,
    missing_pods,
    problem_of,
    startup_step,
)

# The API server reads all Events of the namespace for each: workers of one gang rarely wait for different things.
MOST_LISTS = 3
# About the time until the pod had a node. The last of these has fractions of a second, and a kubelet's events have not:
# its first ones would seem older.
PAST = ("FailedScheduling", "FailedPreemption", "Scheduled")

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class EventExplanations(Struct, frozen=True):
    """For `why_waiting`: what is said about pods, by their uid, and about the Job that makes them."""

    pods: Mapping[str, str] = {}
    job: str = ""


async def start_problems_from_events(cluster: Cluster, job: Job, pods: Iterable[Pod]) -> EventExplanations:
    """What Events say, and of pods that these do not explain either how far they are."""
    pods = tuple(pods)
    silent = [pod for pod in sorted(pods, key=_name) if is_starting(pod) and not problem_of(pod)]
    bound = [pod for pod in silent if pod.spec.node_name]
    lacking = not job.spec.suspend and missing_pods(pods, job.spec.parallelism)
    asked: list[Object] = [*([job] if lacking else []), *bound][:MOST_LISTS]
    answers = await asyncio.gather(*(newest_warning(cluster, each) for each in asked))
    said = {each.metadata.uid: text for each, text in zip(asked, answers, strict=True) if text}
    refused = creation_refused_text(said.pop(job.metadata.uid)) if job.metadata.uid in said else ""
    # A step that takes long is not the reason while a problem is known.
    steps = {pod.metadata.uid: startup_step(pod) for pod in silent} if not said and not refused else {}
    return EventExplanations(pods=said or steps, job=refused)


async def newest_warning(cluster: Cluster, about: Object) -> str:
    """The newest Event about the object, if it is a warning: one from before a later step has been overcome."""
    fields = f"involvedObject.uid={about.metadata.uid}"
    if isinstance(about, Job):
        # The pods that could be made are told in Events of the same moment.
        fields += ",reason=FailedCreate"
    try:
        listing = await cluster.list(EVENTS, namespace=about.metadata.namespace, fields=fields)
    except ClusterError as error:
        # The job goes on without an explanation; whoever runs the operator has to know.
        log.warning("events not read", key=str(about.metadata.key), reason=str(error))
        return ""
    known = (event for event in listing.items if event.reason not in PAST)
    newest = max(known, key=_age, default=None)
    return newest.message if newest is not None and newest.type == "Warning" else ""


def _age(event: CoreEvent) -> tuple[float, str]:
    """Events of components that use the newer API have only eventTime."""
    at = event.last_timestamp or event.event_time or event.metadata.creation_timestamp
    return parse_time(at).timestamp() if at else 0.0, event.message


def _name(pod: Pod) -> str:
    return pod.metadata.name
