"""Children of an object: indexes by owner and by node, how their Jobs are stopped, and their newest warning."""

from collections.abc import Iterable
from contextlib import suppress

import structlog

from holdfast.api.core.objects import CoreEvent, Job, Pod
from holdfast.api.meta import Object
from holdfast.cluster.errors import ClusterError, Conflict, NotFound
from holdfast.cluster.protocol import Cluster, Propagation
from holdfast.cluster.resources import EVENTS, JOBS
from holdfast.runtime.read_your_writes import TrackedClient
from holdfast.times import parse_time


async def stop_jobs(session: TrackedClient, jobs: Iterable[Job]) -> None:
    """Foreground: the Job is gone only when its pods are, and until then it makes no new ones."""
    for job in jobs:
        if not job.metadata.deletion_timestamp:
            # It may be gone, perhaps with another in its place.
            with suppress(NotFound, Conflict):
                await session.delete(JOBS, job.metadata.key, uid=job.metadata.uid, propagation=Propagation.FOREGROUND)


BY_OWNER = "owner"


BY_NODE = "node"


def owner_uid(obj: Object) -> Iterable[str]:
    owner = obj.metadata.controller
    return (owner.uid,) if owner is not None else ()


def node_of(pod: Pod) -> Iterable[str]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()


# About the time until the pod had a node. The last of these has fractions of a second, and a kubelet's events have not:
# its first ones would seem older.
PAST = ("FailedScheduling", "FailedPreemption", "Scheduled")


log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


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
