"""Asks the registry beside the reconciles: a registry may take a minute, and a preemption must not wait for it."""

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from holdfast.api.meta import Key
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.runtime.informer import Informers
from holdfast.runtime.process import Now
from holdfast.spotinstancejob.decide.recovery import set_aside
from holdfast.spotinstancejob.images import CheckpointImages, old_checkpoints, status_image
from holdfast.spotinstancejob.repository import RepositoryProblem
from holdfast.spotinstancejob.snapshot import RepositoryView, status_of

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Repository(Protocol):
    """The job's images in its registry. Every method raises a `RepositoryProblem`."""

    async def checkpoints(self, job: SpotInstanceJob) -> tuple[CheckpointImages, ...]: ...

    async def described(self, job: SpotInstanceJob, checkpoint: CheckpointImages) -> CheckpointImages | None: ...

    async def delete(self, job: SpotInstanceJob, checkpoints: Iterable[CheckpointImages]) -> int: ...


class RepositoryLookups:
    """An event source: an answer of the registry queues the job that it was asked for."""

    def __init__(self, repository: Repository, *, now: Now, retry_s: float) -> None:
        self._repository = repository
        self._now = now
        self._retry_s = retry_s
        self._views: dict[str, RepositoryView] = {}
        self._wanted: dict[str, tuple[datetime, datetime]] = {}
        """By uid of a job since when the answer has to be, and when that was asked for first."""
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._sought: dict[str, dict[str, datetime]] = {}
        """By uid of a job since when which image is looked for."""
        self._cleaned: dict[str, str] = {}
        """By uid of a job the newest image when its old ones were deleted last."""
        self._cleaning: dict[str, asyncio.Task[None]] = {}
        self._add: Callable[[Key], None] = lambda _: None

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        self._add = add

    def view(self, job: SpotInstanceJob, since: datetime, known: tuple[CheckpointImages, ...]) -> RepositoryView | None:
        """What the registry has said, if it was asked after `since`; else it is asked now, and this is None.

        A time that is still to come, by the clock of a node or of an operator before, counts as now.

        `known`: checkpoints whose CheckpointBackups are there, for a registry that lists nothing.
        """
        uid, now = job.metadata.uid, self._now()
        view = self._views.get(uid)
        wanted = self._wanted.get(uid)
        if wanted is None or wanted[0] != since:
            wanted = self._wanted[uid] = since, now
        if view is None or view.asked_at < min(wanted):
            self._ask(job, known)
            return None
        if view.problem and now >= view.asked_at + timedelta(seconds=self._retry_s):
            self._ask(job, known)
        return view

    def described(
        self, job: SpotInstanceJob, image: str, known: tuple[CheckpointImages, ...]
    ) -> CheckpointImages | RepositoryView | None:
        """The checkpoint with the labels of its images, or what the registry says instead; None while it is asked.

        An answer from before the image was asked for can't tell that it is missing.
        """
        uid, now = job.metadata.uid, self._now()
        view, since = self._views.get(uid), self._sought.setdefault(uid, {}).setdefault(image, now)
        for checkpoint in view.checkpoints if view is not None else ():
            if status_image(job, checkpoint) == image:
                return checkpoint
        if view is None or view.asked_at < since or now >= view.asked_at + timedelta(seconds=self._retry_s):
            self._ask(job, known)
        return view if view is not None and (view.problem or view.asked_at >= since) else None

    def next_try(self, job: SpotInstanceJob) -> datetime | None:
        """When the registry may be asked again."""
        view = self._views.get(job.metadata.uid)
        return view.asked_at + timedelta(seconds=self._retry_s) if view is not None else None

    def delete_old_images(self, job: SpotInstanceJob) -> None:
        """Once for each new image: all before the newest `retention` valid ones, but none that a restore uses."""
        uid, newest = job.metadata.uid, status_of(job).last_checkpoint_image or ""
        if not newest or self._cleaned.get(uid) == newest or uid in self._cleaning:
            return
        self._cleaned[uid] = newest
        self._cleaning[uid] = asyncio.create_task(self._clean(job), name=f"images of {job.metadata.key}")

    def forget(self, uid: str) -> None:
        """The job is gone."""
        for tasks in (self._asking, self._cleaning):
            if (task := tasks.get(uid)) is not None:
                task.cancel()
        self._views.pop(uid, None)
        self._wanted.pop(uid, None)
        self._sought.pop(uid, None)
        self._cleaned.pop(uid, None)

    async def run(self) -> None:
        """Lasts as long as this operator leads: what still runs when it is cancelled is cancelled, too."""
        try:
            await asyncio.Event().wait()
        finally:
            running = [*self._asking.values(), *self._cleaning.values()]
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    def _ask(self, job: SpotInstanceJob, known: tuple[CheckpointImages, ...]) -> None:
        uid = job.metadata.uid
        if uid not in self._asking:
            self._asking[uid] = asyncio.create_task(self._look(job, known), name=f"repository of {job.metadata.key}")

    async def _look(self, job: SpotInstanceJob, known: tuple[CheckpointImages, ...]) -> None:
        uid, asked_at = job.metadata.uid, self._now()
        try:
            found = await self._repository.checkpoints(job)
            listed = {each.number for each in found}
            for checkpoint in known:
                if checkpoint.number not in listed:
                    described = await self._repository.described(job, checkpoint)
                    found += (described,) if described is not None else ()
            found = tuple(sorted(found, key=lambda each: each.order, reverse=True))
            self._views[uid] = RepositoryView(asked_at=asked_at, checkpoints=found)
        except RepositoryProblem as problem:
            self._views[uid] = RepositoryView(asked_at=asked_at, problem=str(problem))
        except Exception:
            log.exception("the repository could not be asked", key=str(job.metadata.key))
            self._views[uid] = RepositoryView(asked_at=asked_at, problem="an error in holdfast: its log says more")
        finally:
            del self._asking[uid]
            self._add(job.metadata.key)

    async def _clean(self, job: SpotInstanceJob) -> None:
        key, uid, status = job.metadata.key, job.metadata.uid, status_of(job)
        in_use = {each.restored_from for each in status.job_statuses if each.restored_from}
        in_use |= {status.last_checkpoint_image} if status.last_checkpoint_image else set()
        retain = job.spec.checkpoint_config.retention
        try:
            found = await self._repository.checkpoints(job)
            old = old_checkpoints(found, retain, in_use, set_aside(status))
            if old:
                log.info("old images deleted", key=str(key), images=await self._repository.delete(job, old))
        except RepositoryProblem as problem:
            # The next checkpoint is the next occasion.
            log.info("old images stay", key=str(key), reason=str(problem))
        except Exception:
            log.exception("old images stay", key=str(key))
        finally:
            del self._cleaning[uid]
