"""What a training is asked before it ends, and what is answered to those who want it to end."""

import asyncio
from pathlib import Path

from holdfast.api.reports import ReportReply
from holdfast.sidecar.http import AttemptState
from holdfast.sidecar.settings import SidecarSettings
from holdfast.sidecar.shutdown import END_S, ShutdownCoordinator
from holdfast.train.notice import announcement_file
from tests.sidecar.operators import until
from tests.sidecar.test_persister import FakeBackend, Told, keeping


def stopping(
    notice: Path | None, place: FakeBackend | None = None, grace_s: float = 30.0
) -> tuple[ShutdownCoordinator, AttemptState]:
    settings = SidecarSettings(
        job="j", namespace="n", uid="u", attempt=1, index=0, notice_file=notice, grace_s=grace_s, metric_names={}
    )
    standing = AttemptState()
    if notice is not None and notice.parent.is_dir():
        announcement_file(notice).touch()
    found = ShutdownCoordinator(settings, standing)
    found.persister = keeping(place, Told()) if place is not None else None
    return found, standing


async def test_without_checkpoints_nobody_is_asked(tmp_path: Path) -> None:
    for found, _ in (stopping(None, FakeBackend()), stopping(tmp_path / "notice")):
        assert await found.pre_stop() == "no checkpoints are kept"
    assert not (tmp_path / "notice").exists()


async def test_those_who_ask_at_the_same_time_wait_for_one_save_and_later_ones_for_another(tmp_path: Path) -> None:
    place, file = FakeBackend(), tmp_path / "notice"
    found, _ = stopping(file, place)
    both = asyncio.gather(found.pre_stop(), found.pre_stop())
    await until(file.exists)
    first = file.stat().st_ino
    place.save(1)
    assert set(await both) == {"saved checkpoint-epoch-1 of attempt 1"}
    again = asyncio.create_task(found.pre_stop())
    await until(lambda: file.stat().st_ino != first)
    place.save(2)
    assert await again == "saved checkpoint-epoch-2 of attempt 1"


async def test_who_stops_waiting_does_not_end_the_wait_of_others(tmp_path: Path) -> None:
    place = FakeBackend()
    found, _ = stopping(tmp_path / "notice", place)
    impatient = asyncio.create_task(found.pre_stop())
    patient = asyncio.create_task(found.pre_stop())
    await until((tmp_path / "notice").exists)
    impatient.cancel()
    place.save(1)
    assert await patient == "saved checkpoint-epoch-1 of attempt 1"


async def test_a_notice_that_can_t_be_given_does_not_hold_up_the_end(tmp_path: Path) -> None:
    (tmp_path / "notice").mkdir()
    found, _ = stopping(tmp_path / "notice", FakeBackend())
    assert await found.pre_stop() == "the training can't be asked to save"


async def test_a_training_that_does_not_say_that_it_heeds_notices_is_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "notice"
    found, standing = stopping(file, FakeBackend(), grace_s=3600.0)
    announcement_file(file).unlink()
    assert await found.pre_stop() == "the training does not heed notices"
    assert file.exists(), "it may look all the same"
    found.on_reply(ReportReply(attempt=1, attempt_over=False, stop="TargetReached"))
    await until(lambda: not standing.is_live)


async def test_an_attempt_that_is_over_is_told_to_the_probe_at_once(tmp_path: Path) -> None:
    found, standing = stopping(tmp_path / "notice", FakeBackend())
    found.on_reply(ReportReply(attempt=1, attempt_over=False))
    was_live = standing.is_live
    found.on_reply(ReportReply(attempt=2, attempt_over=True))
    assert (was_live, standing.is_live) == (True, False)
    assert await found.pre_stop() == "the training need not save"


async def test_news_that_the_attempt_is_over_ends_the_wait_for_a_save(tmp_path: Path) -> None:
    found, _ = stopping(tmp_path / "notice", FakeBackend(), grace_s=3600.0)
    waiting = asyncio.create_task(found.pre_stop())
    await until((tmp_path / "notice").exists)
    found.on_reply(ReportReply(attempt=2, attempt_over=True))
    assert await waiting == "no checkpoint came"


async def test_a_training_that_is_to_end_is_asked_once_and_the_stop_waits_for_that_save(tmp_path: Path) -> None:
    place, file = FakeBackend(), tmp_path / "notice"
    found, standing = stopping(file, place)
    for _ in range(2):
        found.on_reply(ReportReply(attempt=1, attempt_over=False, stop="EarlyStopped"))
    await until(file.exists)
    was_live = standing.is_live
    waiting = asyncio.create_task(found.pre_stop())
    await asyncio.sleep(0)
    place.save(7)
    assert await waiting == "the training was to end"
    assert (was_live, standing.is_live) == (True, False)
    assert file.read_text() == "the training is to end: EarlyStopped\n"


async def test_what_is_left_of_the_grace_period_counts_from_the_pre_stop(tmp_path: Path) -> None:
    found, _ = stopping(None, grace_s=30.0)
    assert found.left_s() == 30.0 - END_S
    await found.pre_stop()
    before = found.left_s()
    assert before <= 30.0 - END_S
    short, _ = stopping(None, grace_s=0.0)
    assert short.left_s() == END_S


async def test_the_operator_may_ask_for_a_save_and_each_reason_asks_once(tmp_path: Path) -> None:
    place, file = FakeBackend(), tmp_path / "notice"
    found, standing = stopping(file, place)
    spot = ReportReply(attempt=1, attempt_over=False, save="node spot-1 is about to be taken back")
    found.on_reply(spot)
    await until(file.exists)
    assert file.read_text() == "node spot-1 is about to be taken back\n"
    place.save(1)
    await until(lambda: not found.is_saving)
    file.unlink()
    found.on_reply(spot)
    assert not found.is_saving
    found.on_reply(ReportReply(attempt=1, attempt_over=False, save="worker 1 is about to be stopped"))
    await until(file.exists)
    assert standing.is_live


async def test_an_attempt_that_ends_for_another_spec_may_still_save(tmp_path: Path) -> None:
    place, file = FakeBackend(), tmp_path / "notice"
    found, standing = stopping(file, place)
    found.on_reply(ReportReply(attempt=2, attempt_over=True, is_graceful=True))
    assert standing.is_live
    asked = asyncio.create_task(found.pre_stop())
    await until(file.exists)
    place.save(1)
    assert await asked == "saved checkpoint-epoch-1 of attempt 1"
    found.on_reply(ReportReply(attempt=3, attempt_over=True))
    assert not standing.is_live


async def test_a_training_heeds_notices_when_it_says_so_and_its_checkpoints_are_kept(tmp_path: Path) -> None:
    assert stopping(tmp_path / "notice", FakeBackend())[0].trainer_saves_on_notice()
    assert not stopping(tmp_path / "notice")[0].trainer_saves_on_notice()
    assert not stopping(None, FakeBackend())[0].trainer_saves_on_notice()
    assert not stopping(tmp_path / "missing" / "notice", FakeBackend())[0].trainer_saves_on_notice()
