"""Keeping what a training saves, with a place that fails when it is told to."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import pytest

from holdfast.api.reports import CheckpointReport, Outcome
from holdfast.checkpoints.completeness import FolderScan, ShardMarkers
from holdfast.checkpoints.errors import CheckpointError, Incomplete, MissingPart, StorageFull, UnsafeContent
from holdfast.checkpoints.files import FileEntry, FileStamp
from holdfast.checkpoints.manifest import CheckpointName, SaveInfo, checkpoint_name
from holdfast.checkpoints.retention import Metric, StoredCheckpoint
from holdfast.sidecar.persister import CheckpointPersister
from holdfast.sidecar.storage import POSSIBLY_PARTIAL, Remaining
from tests.sidecar.operators import until


class FakeBackend:
    """Faults are set here, then the calls and what is told are looked at."""

    def __init__(self, outcome: Outcome = "completed") -> None:
        self.outcome: Outcome = outcome
        self.looks: list[FolderScan] = []
        self.kept: list[tuple[int, int]] = []
        self.signed: set[CheckpointName] = set()
        self.next_errors: list[CheckpointError] = []
        self.needed: list[set[CheckpointName]] = []
        self.tidy_error: CheckpointError | None = None
        self.look_error: OSError | None = None
        self.others: list[FolderScan] | None = None
        self.metrics: dict[int, Mapping[str, float]] = {}
        self.left: StoredCheckpoint | None = None

    def save(self, epoch: int, version: int = 0, *, complete: bool = True) -> None:
        entry = FileEntry("model.bin", FileStamp(version, 1, version, version))
        others = [looked for looked in self.looks if looked.name.epoch != epoch]
        self.looks = [FolderScan(checkpoint_name(epoch, 1), complete, "", (entry,)), *others]

    def address(self, name: CheckpointName) -> str:
        return f"/volume/{name.folder}"

    def scan(self, now: float) -> list[FolderScan]:
        if self.look_error is not None:
            raise self.look_error
        return list(self.looks)

    def final_scan(self) -> list[FolderScan]:
        return self.scan(0.0)

    def worker0_checkpoints(self) -> list[FolderScan] | None:
        return self.others

    def is_persisted(self, looked: FolderScan) -> bool:
        return looked.name in self.signed

    def persist(self, looked: FolderScan, about: SaveInfo, metrics: Mapping[str, float]) -> None:
        if self.next_errors:
            raise self.next_errors.pop(0)
        self.metrics[looked.name.epoch] = metrics
        self.kept.append((looked.name.epoch, looked.content[0].stamp.size))

    def apply_retention(
        self, looks: list[FolderScan], keep: int, needed: set[CheckpointName], by: Metric
    ) -> Remaining | None:
        self.needed.append(needed)
        if self.tidy_error is not None:
            raise self.tidy_error
        return Remaining(len(self.kept), self.left)


class Told(list[tuple[int, str, str]]):
    def __init__(self) -> None:
        super().__init__()
        self.best: list[str] = []

    def tell(self, entry: CheckpointReport) -> None:
        self.best += [entry.best] if entry.best is not None else []
        self.append((entry.epoch, entry.outcome, entry.reason))


def keeping(
    place: FakeBackend,
    told: Told,
    needed: set[CheckpointName] | None = None,
    *,
    is_over: Callable[[], bool] = lambda: False,
    reported: Callable[[int], Mapping[str, float]] = lambda _: {},
) -> CheckpointPersister:
    return CheckpointPersister(
        place,
        keep=3,
        needed=needed or set(),
        about=lambda: SaveInfo("uid-1", "2026-01-01T00:00:00Z"),
        on_checkpoint=told.tell,
        wall=lambda: 5.0,
        reported=reported,
        is_over=is_over,
        scan_interval_s=0.01,
    )


@asynccontextmanager
async def running(keeper: CheckpointPersister) -> AsyncIterator[None]:
    task = asyncio.create_task(keeper.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_each_complete_checkpoint_is_kept_once_the_newest_first() -> None:
    place, told = FakeBackend(), Told()
    for epoch in (1, 2, 3):
        place.save(epoch)
    place.save(4, complete=False)
    async with running(keeping(place, told)):
        await until(lambda: len(told) == 3)
        place.save(4)
        await until(lambda: len(told) == 4)
    assert place.kept == [(3, 0), (2, 0), (1, 0), (4, 0)]
    assert told == [(epoch, "completed", "") for epoch in (3, 2, 1, 4)]


async def test_the_best_of_many_saves_at_once_is_kept_and_not_deleted_before() -> None:
    place, told = FakeBackend(), Told()
    for epoch in range(1, 8):
        place.save(epoch)
    losses = {epoch: 0.1 if epoch == 2 else 0.5 for epoch in range(1, 8)}
    keeper = keeping(place, told, reported=lambda epoch: {"loss": losses[epoch]})
    async with running(keeper):
        await until(lambda: [epoch for epoch, _ in place.kept] == [7, 6, 5, 2])
        await until(lambda: len(place.needed) == 4)
    assert place.needed == [{checkpoint_name(2, 1)}, {checkpoint_name(2, 1)}, {checkpoint_name(2, 1)}, set()]
    assert place.metrics == {epoch: {"loss": losses[epoch]} for epoch in (7, 6, 5, 2)}


async def test_what_is_kept_and_better_needs_no_other() -> None:
    place, told = FakeBackend(), Told()
    place.left = StoredCheckpoint(checkpoint_name(1, 0), valid=True, metrics={"loss": 0.05})
    place.save(4)
    keeper = keeping(place, told, reported=lambda epoch: {"loss": 0.9 if epoch == 4 else epoch / 10})
    async with running(keeper):
        await until(lambda: told.best == ["/volume/attempt-0/checkpoint-epoch-1"])
        for epoch in (6, 7, 8, 9):
            place.save(epoch)
        await until(lambda: len(told.best) == 4)
    assert [epoch for epoch, _ in place.kept] == [4, 9, 8, 7]


async def test_a_part_of_a_checkpoint_is_not_waited_for_as_the_best() -> None:
    place, told = FakeBackend(), Told()
    for epoch in range(1, 5):
        place.save(epoch)
    part = ShardMarkers(2, frozenset({0}), metrics={"loss": 0.1})
    place.looks = [looked._replace(declared=part) if looked.name.epoch == 1 else looked for looked in place.looks]
    await keeping(place, told).persist_remaining()
    assert [epoch for epoch, _ in place.kept] == [4, 3, 2]


async def test_one_that_is_saved_anew_is_kept_anew() -> None:
    place, told = FakeBackend(), Told()
    place.save(1)
    async with running(keeping(place, told)):
        await until(lambda: place.kept == [(1, 0)])
        place.save(1, version=7)
        await until(lambda: place.kept == [(1, 0), (1, 7)])


async def test_an_upload_is_told_of_when_it_begins_and_when_it_is_done() -> None:
    place, told = FakeBackend("uploaded"), Told()
    place.save(1)
    place.next_errors = [StorageFull("no space")]
    keeper = keeping(place, told)
    await keeper.persist_next(await keeper.scan())
    await keeper.persist_remaining()
    assert told[:2] == [(1, "completed", ""), (1, "failed", "no space")]
    assert told[-1] == (1, "uploaded", "")


async def test_a_failure_is_told_once_and_the_next_checkpoint_does_not_wait_for_it() -> None:
    place, told = FakeBackend(), Told()
    place.save(1)
    place.next_errors = [StorageFull("no space")]
    async with running(keeping(place, told)):
        await until(lambda: told == [(1, "failed", "no space")])
        place.save(2)
        await until(lambda: place.kept[:1] == [(2, 0)])
        await until(lambda: place.kept == [(2, 0), (1, 0)])
    assert [entry for entry in told if entry[1] == "failed"] == [(1, "failed", "no space")]


async def test_what_can_never_be_kept_is_told_and_left() -> None:
    place, told = FakeBackend(), Told()
    place.save(1)
    place.next_errors = [UnsafeContent("a link leads out")]
    keeper = keeping(place, told)
    await keeper.persist_next(await keeper.scan())
    place.next_errors = [UnsafeContent("a link leads out")]
    await keeper.persist_remaining()
    assert place.kept == []
    assert keeper.unpersisted == [checkpoint_name(1, 1)]
    assert told[0] == (1, "failed", "a link leads out")


async def test_what_is_refused_at_a_look_is_told_once() -> None:
    place, told = FakeBackend(), Told()
    place.save(1)
    place.looks.append(FolderScan(checkpoint_name(2, 1), False, "there are more than 10000 files", (), refused=True))
    async with running(keeping(place, told)):
        await until(lambda: place.kept == [(1, 0)] and len(told) == 2)
        place.save(3)
        await until(lambda: len(told) == 3)
    assert told == [(2, "failed", "there are more than 10000 files"), (1, "completed", ""), (3, "completed", "")]


async def test_one_that_is_still_written_is_no_trouble() -> None:
    place, told = FakeBackend(), Told()
    place.save(1)
    place.next_errors = [Incomplete("it was written to")]
    keeper = keeping(place, told)
    await keeper.persist_next(await keeper.scan())
    assert told == []
    await keeper.persist_remaining()
    assert told == [(1, "completed", "")]


async def test_what_a_sidecar_before_this_one_kept_is_told_and_not_kept_again() -> None:
    place, told = FakeBackend(), Told()
    place.save(1)
    place.signed = {checkpoint_name(1, 1)}
    keeper = keeping(place, told)
    await keeper.persist_next(await keeper.scan())
    assert (place.kept, told) == ([], [(1, "completed", "")])


async def test_the_copy_that_the_attempt_began_with_is_not_told_as_its_own() -> None:
    place, told = FakeBackend(), Told()
    place.save(4)
    place.signed = {checkpoint_name(4, 1)}
    keeper = keeping(place, told, needed={checkpoint_name(4, 0), checkpoint_name(4, 1)})
    await keeper.persist_next(await keeper.scan())
    assert told == []
    assert place.needed == [{checkpoint_name(4, 0), checkpoint_name(4, 1)}]
    place.save(5)
    await keeper.persist_next(await keeper.scan())
    assert told == [(5, "completed", "")]
    assert place.needed[-1] == {checkpoint_name(4, 1)}, (
        "the original is not needed any more; RESUME_FROM leads to the copy"
    )


async def test_old_ones_that_can_t_be_deleted_are_no_reason_to_stop() -> None:
    place, told = FakeBackend(), Told()
    place.save(1)
    place.tidy_error = StorageFull("no quota")
    keeper = keeping(place, told)
    await keeper.persist_next(await keeper.scan())
    assert told == [(1, "completed", "")]


async def test_a_notice_is_answered_by_what_is_saved_after_it() -> None:
    place, told = FakeBackend(), Told()
    place.save(1)
    keeper = keeping(place, told)
    asked: list[str] = []
    waiting = asyncio.create_task(keeper.request_save(lambda: asked.append("save"), 60.0, lambda: False))
    await until(lambda: asked == ["save"])
    place.save(2)
    assert await waiting == checkpoint_name(2, 1)


async def test_nobody_waits_for_an_answer_that_is_not_needed_any_more() -> None:
    keeper = keeping(FakeBackend(), Told())
    assert await keeper.request_save(lambda: None, 60.0, lambda: True) is None


async def test_a_worker_that_does_not_save_waits_until_worker_0_has() -> None:
    place = FakeBackend()
    place.save(4)
    place.others = [place.looks[0]]
    keeper = keeping(place, Told())
    asked: list[str] = []
    waiting = asyncio.create_task(keeper.request_save(lambda: asked.append("save"), 60.0, lambda: False))
    await until(lambda: asked == ["save"])
    other = FakeBackend()
    other.save(5)
    place.others = other.looks
    assert await waiting == checkpoint_name(5, 1)


async def test_an_attempt_that_is_over_still_keeps_what_was_complete_before_and_deletes_nothing() -> None:
    place, told, over = FakeBackend(), Told(), False
    keeper = keeping(place, told, is_over=lambda: over)
    place.save(1)
    await keeper.persist_next(await keeper.scan())
    place.save(2)
    place.save(3, complete=False)
    looks = await keeper.scan()
    over = True
    place.save(3)
    place.save(4)
    await keeper.persist_next(looks)
    await keeper.persist_remaining()
    assert [epoch for epoch, _ in place.kept] == [1, 2]
    assert (len(place.needed), keeper.unpersisted) == (1, []), "tidied once, before it was over"


async def test_an_attempt_that_is_over_tries_each_once_more_and_ends() -> None:
    place, over = FakeBackend(), False
    keeper = keeping(place, Told(), is_over=lambda: over)
    place.save(1)
    await keeper.scan()
    over = True
    place.next_errors = [StorageFull("no space")] * 99
    await keeper.persist_remaining()
    assert (place.kept, keeper.unpersisted, len(place.next_errors)) == ([], [checkpoint_name(1, 1)], 98)


async def test_an_attempt_that_was_over_when_it_was_first_looked_at_keeps_nothing() -> None:
    place = FakeBackend()
    place.save(1)
    keeper = keeping(place, Told(), is_over=lambda: True)
    assert await keeper.scan() == []
    await keeper.persist_remaining()
    assert place.kept == []


async def test_when_nothing_can_be_seen_what_was_seen_before_is_kept() -> None:
    place = FakeBackend()
    place.save(1)
    keeper = keeping(place, Told())
    await keeper.scan()
    place.look_error = OSError(116, "Stale file handle")
    await keeper.persist_remaining()
    assert place.kept == [(1, 0)]


async def test_a_training_that_ended_well_has_left_no_half_of_a_checkpoint() -> None:
    place, told = FakeBackend(), Told()
    place.save(1, complete=False)
    place.looks = [place.looks[0]._replace(why=POSSIBLY_PARTIAL)]
    keeper = keeping(place, told)
    await keeper.persist_remaining()
    assert (place.kept, keeper.needs_exit_code) == ([], True)
    await keeper.persist_remaining(succeeded=True)
    assert place.kept == [(1, 0)]


async def test_missing_shards_are_missing_however_the_training_ended() -> None:
    place = FakeBackend()
    place.save(1, complete=False)
    place.looks = [place.looks[0]._replace(why="shards of it are missing")]
    keeper = keeping(place, Told())
    await keeper.persist_remaining(succeeded=True)
    assert (place.kept, keeper.needs_exit_code) == ([], False)


async def test_the_part_of_a_worker_that_was_killed_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.sidecar.persister.PARTS_S", 0.2)
    place, told = FakeBackend(), Told()
    place.save(1)
    place.next_errors = [MissingPart("worker 1")] * 1000
    keeper = keeping(place, told)
    await keeper.persist_remaining()
    assert (keeper.unpersisted, place.kept) == ([checkpoint_name(1, 1)], [])


async def test_a_part_that_comes_in_time_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sidecar.persister.RETRY_S", 0.01)
    place, told = FakeBackend(), Told()
    place.save(1)
    place.next_errors = [MissingPart("worker 1")] * 3
    keeper = keeping(place, told)
    await keeper.persist_remaining()
    assert (keeper.unpersisted, place.kept) == ([], [(1, 0)])


async def test_a_store_that_fails_is_tried_for_longer_than_parts_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.sidecar.persister.PARTS_S", 0.0)
    monkeypatch.setattr("holdfast.sidecar.persister.RETRY_S", 0.05)
    place, told = FakeBackend(), Told()
    place.save(1)
    place.next_errors = [StorageFull("no space")] * 3
    keeper = keeping(place, told)
    await keeper.persist_remaining()
    assert (keeper.unpersisted, place.kept) == ([], [(1, 0)])
