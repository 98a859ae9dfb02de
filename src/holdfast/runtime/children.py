"""Children of an object: whose they are, indexes by owner and by node, the stop of Jobs, the newest warning."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import structlog

from holdfast.api.core.objects import CoreEvent, Job, Pod
from holdfast.api.meta import Object
from holdfast.cluster.errors import ClusterError, Conflict, NotFound
from holdfast.cluster.protocol import Cluster, DeleteOptions, Propagation, Resource
from holdfast.cluster.resources import EVENTS, JOBS
from holdfast.errors import HoldfastError
from holdfast.runtime.read_your_writes import TrackedClient
from holdfast.times import parse_time

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


async def stop_jobs(session: TrackedClient, jobs: Iterable[Job]) -> None:
    """Deletes in the foreground: a Job is gone only when its pods are, and until then the Job makes no new pods."""
    for job in jobs:
        if not job.metadata.deletion_timestamp:
            # The Job may be gone, perhaps replaced by another Job of the same name.
            with suppress(NotFound, Conflict):
                await session.delete(
                    JOBS, job.metadata.key, DeleteOptions(uid=job.metadata.uid, propagation=Propagation.FOREGROUND)
                )


class Blocked(HoldfastError):
    """An object that holdfast must not remove is in the way. The object may go by itself, or be deleted by others."""


def ensure_own_child(seen: Object, kind: str, owner: Object, owners: Resource[Any], *, noun: str) -> None:
    """Raises `Blocked` when the child of this kind is not `owner`'s own, or is being deleted.

    `noun` is what messages call an object like `owner`.
    """
    what, found = f"{kind} {seen.metadata.name}", seen.metadata.controller
    if found is None or found.uid != owner.metadata.uid:
        if found is not None and (found.kind, found.name) == (owners.kind, owner.metadata.name):
            raise Blocked(f"waiting for {what} of an earlier {owners.kind} of this name to be deleted")
        whose = f"{found.kind} {found.name}" if found is not None else f"nobody that this {noun} knows"
        raise Blocked(f"{what} is there already and belongs to {whose}: delete it, or give this {noun} another name")
    if seen.metadata.deletion_timestamp:
        raise Blocked(f"waiting for {what} to be deleted before it is made again")


BY_OWNER = "owner"


BY_NODE = "node"


def owner_uid(obj: Object) -> Iterable[str]:
    owner = obj.metadata.controller
    return (owner.uid,) if owner is not None else ()


def node_of(pod: Pod) -> Iterable[str]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()


# Events about the time until the pod was bound. The last of these has fractions of a second, and a kubelet's Events do
# not: the first Events of the kubelet would seem older.
PAST = ("FailedScheduling", "FailedPreemption", "Scheduled")


async def newest_warning(cluster: Cluster, about: Object) -> str:
    """The newest Event about the object, if it is a warning: a warning before a later step is resolved."""
    fields = f"involvedObject.uid={about.metadata.uid}"
    if isinstance(about, Job):
        # Events of the same moment report the pods that could be made.
        fields += ",reason=FailedCreate"
    try:
        listing = await cluster.list(EVENTS, namespace=about.metadata.namespace, fields=fields)
    except ClusterError as error:
        # The job goes on without an explanation; the administrator of the operator has to know.
        log.warning("events not read", key=str(about.metadata.key), reason=str(error))
        return ""
    candidates = (event for event in listing.items if event.reason not in PAST)
    newest = max(candidates, key=_time_of, default=None)
    return newest.message if newest is not None and newest.type == "Warning" else ""


def _time_of(event: CoreEvent) -> tuple[float, str]:
    """Events of components that use the newer API have only eventTime."""
    at = event.last_timestamp or event.event_time or event.metadata.creation_timestamp
    return parse_time(at).timestamp() if at else 0.0, event.message
