"""Makes a TrainingJob's children as they should be, without ever touching what is not its own."""

import asyncio
from collections.abc import Iterable
from typing import cast

from msgspec import structs

from holdfast.api.builtin import Job
from holdfast.api.meta import Key, Object
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.errors import AlreadyExists, Forbidden, Invalid
from holdfast.cluster.protocol import Cluster, Propagation
from holdfast.cluster.resources import JOBS
from holdfast.controllers.trainingjob.children import Child, around_workers, belongs_to, difference, workers_of
from holdfast.controllers.trainingjob.observe import Caches
from holdfast.errors import HoldfastError
from holdfast.planning.trainingjob.observed import Observed
from holdfast.runtime.result import TerminalError
from holdfast.runtime.writes import Session


class Obstacle(HoldfastError):
    """Something that is not ours to remove stands in the way; it may go by itself."""


class Applier:
    """Takes one job's children one step towards what they should be."""

    def __init__(self, job: TrainingJob, caches: Caches, cluster: Cluster, session: Session) -> None:
        self._job = job
        self._caches = caches
        self._cluster = cluster
        self._session = session

    async def apply(self, observed: Observed, default_image: str) -> Observed:
        """Returns what is seen after the step."""
        if observed.ended or observed.outdated:
            # An outdated attempt is stopped once the number of the next one is in status: a crash in between is seen.
            return observed
        if observed.earlier:
            await self._stop(observed.earlier)
            return observed
        try:
            await self._ensure_all(around_workers(self._job))
            workers = await self._ensure(workers_of(self._job, default_image))
        except (Obstacle, Forbidden) as error:
            return structs.replace(observed, obstacle=str(error))
        except Invalid as error:
            raise TerminalError("Refused", str(error)) from error
        return structs.replace(observed, workers=cast("Job", workers))

    async def _stop(self, jobs: tuple[Job, ...]) -> None:
        """Foreground: the Job is gone only when its pods are, so that two attempts never run at once."""
        for job in jobs:
            if not job.metadata.deletion_timestamp:
                await self._session.delete(
                    JOBS, job.metadata.key, uid=job.metadata.uid, propagation=Propagation.FOREGROUND
                )

    async def _ensure_all(self, children: Iterable[Child]) -> None:
        """At the same time: a busy API server takes a second for a Service. Of several failures the first is raised."""
        ends = await asyncio.gather(*map(self._ensure, children), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def _ensure(self, child: Child) -> Object:
        key = Key(self._job.metadata.namespace, child.name)
        seen = self._caches.child(child.resource.kind, key)
        if seen is None:
            try:
                return await self._session.create(child.resource, child.body, namespace=key.namespace)
            except AlreadyExists:
                # Somebody else's, or ours without the label that the caches go by.
                seen = await self._cluster.get(child.resource, key)
        self._check_ours(child, seen)
        patch = difference(self._job, child, seen)
        return await self._session.patch(child.resource, key, patch) if patch else seen

    def _check_ours(self, child: Child, seen: Object) -> None:
        what = f"{child.resource.kind} {seen.metadata.name}"
        if not belongs_to(seen, self._job):
            owner = seen.metadata.controller
            whose = f"{owner.kind} {owner.name}" if owner else "nobody that this job knows"
            if owner and owner.kind == "TrainingJob" and owner.name == self._job.metadata.name:
                raise Obstacle(f"waiting for {what} of an earlier TrainingJob of this name to be deleted")
            raise Obstacle(f"{what} is there already and belongs to {whose}: delete it, or give this job another name")
        if seen.metadata.deletion_timestamp:
            raise Obstacle(f"waiting for {what} to be deleted before it is made again")
