"""The registry is asked beside the reconciles: what it says queues the job, and an old answer is not believed."""

import asyncio
from collections.abc import Iterable
from datetime import datetime

import pytest
from msgspec import structs

from holdfast.api.meta import Key
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.spotinstancejob.images import CheckpointImages, checkpoint_of, status_image
from holdfast.spotinstancejob.lookups import RepositoryLookups
from holdfast.spotinstancejob.repository import RepositoryProblem
from holdfast.spotinstancejob.snapshot import RepositoryView
from tests.runtime.virtual import settled
from tests.spotinstancejob.jobs import finished_backup, spot_job
from tests.trainingjobs import at

JOB = spot_job()


def checkpoint(number: int) -> CheckpointImages:
    found = checkpoint_of(JOB, finished_backup(number))
    assert found is not None
    return found


class SlowRegistry:
    """Answers when it is let."""

    def __init__(self, *numbers: int) -> None:
        self.found = tuple(checkpoint(number) for number in sorted(numbers, reverse=True))
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.asked = 0
        self.deleted: list[int] = []

    async def checkpoints(self, job: SpotInstanceJob) -> tuple[CheckpointImages, ...]:
        self.asked += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.found

    async def described(self, job: SpotInstanceJob, checkpoint: CheckpointImages) -> CheckpointImages | None:
        return structs.replace(checkpoint, taken_at="described")

    async def delete(self, job: SpotInstanceJob, checkpoints: Iterable[CheckpointImages]) -> int:
        self.deleted += [each.number for each in checkpoints]
        return len(self.deleted)


class Looking:
    def __init__(self, registry: SlowRegistry) -> None:
        self.seconds = 0.0
        self.woken: list[Key] = []
        self.lookups = RepositoryLookups(registry, now=lambda: at(self.seconds), retry_s=15)
        self.lookups.attach(None, self.woken.append)  # type: ignore[arg-type]

    def view(self, since: datetime, *known: CheckpointImages) -> RepositoryView | None:
        return self.lookups.view(JOB, since, known)


async def test_an_answer_queues_the_job_and_is_there_then() -> None:
    looking = Looking(SlowRegistry(3, 5))
    assert looking.view(at(0)) is None
    await settled()
    assert looking.woken == [JOB.metadata.key]
    view = looking.view(at(0))
    assert view is not None
    assert [each.number for each in view.checkpoints] == [5, 3]


async def test_a_slow_registry_is_asked_once() -> None:
    registry = SlowRegistry(3)
    registry.gate.clear()
    looking = Looking(registry)
    for _ in range(3):
        assert looking.view(at(0)) is None
        await settled()
    assert registry.asked == 1
    registry.gate.set()
    await settled()
    assert looking.view(at(0)) is not None


async def test_an_answer_from_before_is_not_believed() -> None:
    looking = Looking(registry := SlowRegistry(3))
    looking.view(at(0))
    await settled()
    looking.seconds = 20
    assert looking.view(at(10)) is None
    await settled()
    assert looking.view(at(10)) is not None
    assert registry.asked == 2


async def test_a_time_that_is_still_to_come_is_not_waited_for() -> None:
    """The clock of a node may be ahead, and the registry would be asked again and again until then."""
    looking = Looking(registry := SlowRegistry(3))
    looking.view(at(0))
    await settled()
    looking.seconds = 20
    assert looking.view(at(900)) is None
    await settled()
    looking.seconds = 30
    assert looking.view(at(900)) is not None
    assert registry.asked == 2


async def test_what_a_registry_does_not_list_is_asked_for_by_name() -> None:
    looking = Looking(SlowRegistry(3))
    looking.view(at(0), checkpoint(3), checkpoint(7))
    await settled()
    view = looking.view(at(0))
    assert view is not None
    assert [(each.number, each.taken_at == "described") for each in view.checkpoints] == [(7, True), (3, False)]


@pytest.mark.parametrize("error", [RepositoryProblem("it does not answer", may_pass=True), ZeroDivisionError()])
async def test_a_registry_that_is_away_is_said_and_asked_again(error: Exception) -> None:
    looking = Looking(registry := SlowRegistry(3))
    registry.error = error
    looking.view(at(0))
    await settled()
    view = looking.view(at(0))
    assert view is not None
    assert view.problem
    registry.error = None
    looking.seconds = 14
    looking.view(at(0))
    await settled()
    assert registry.asked == 1
    assert looking.lookups.next_try(JOB) == at(15)
    looking.seconds = 15
    looking.view(at(0))
    await settled()
    again = looking.view(at(0))
    assert again is not None
    assert not again.problem


async def test_an_image_is_described_or_missing_only_by_an_answer_that_can_know_it() -> None:
    looking = Looking(registry := SlowRegistry(3))
    looking.view(at(0))
    await settled()
    looking.seconds = 5
    wanted = status_image(JOB, checkpoint(7))
    assert looking.lookups.described(JOB, wanted, ()) is None
    await settled()
    missing = looking.lookups.described(JOB, wanted, ())
    assert isinstance(missing, RepositoryView)
    registry.found = (checkpoint(7),)
    looking.seconds = 20
    looking.lookups.described(JOB, wanted, ())
    await settled()
    found = looking.lookups.described(JOB, wanted, ())
    assert isinstance(found, CheckpointImages)


def saved(newest: int, **replica: object) -> SpotInstanceJob:
    status = {
        "lastCheckpointImage": status_image(JOB, checkpoint(newest)),
        "jobStatuses": [{"name": "bert-r0", **replica}],
    }
    return spot_job(status=status)


async def test_old_images_are_deleted_once_for_each_new_one_and_never_one_that_a_restore_uses() -> None:
    looking = Looking(registry := SlowRegistry(1, 2, 3, 4, 5))
    job = saved(5, restoredFrom=status_image(JOB, checkpoint(1)))
    for _ in range(3):
        looking.lookups.delete_old_images(job)
        await settled()
    assert registry.deleted == [2]
    registry.found = (checkpoint(6), *registry.found)
    looking.lookups.delete_old_images(saved(6))
    await settled()
    assert registry.deleted == [2, 1, 2, 3]


async def test_nothing_is_deleted_before_the_first_checkpoint_and_while_the_registry_is_away() -> None:
    looking = Looking(registry := SlowRegistry(1, 2, 3, 4, 5))
    looking.lookups.delete_old_images(JOB)
    registry.error = RepositoryProblem("it does not answer", may_pass=True)
    looking.lookups.delete_old_images(saved(5))
    await settled()
    assert registry.deleted == []


async def test_what_runs_ends_with_the_leadership_and_with_the_job() -> None:
    registry = SlowRegistry(3)
    registry.gate.clear()
    looking = Looking(registry)
    running = asyncio.create_task(looking.lookups.run())
    looking.view(at(0))
    await settled()
    running.cancel()
    await asyncio.wait([running])
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("repository of")] == []
    looking.view(at(0))
    await settled()
    looking.lookups.forget(JOB.metadata.uid)
    await settled()
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("repository of")] == []
