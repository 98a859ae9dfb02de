"""A notice of the node's agent: the training saves once for it, by whatever way it hears of it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.api.reports import NodeNotice, ReportReply
from holdfast.checkpoints.manifest import CheckpointName, checkpoint_name
from holdfast.sidecar.http import AttemptState
from holdfast.sidecar.persister import CheckpointPersister
from holdfast.sidecar.settings import SidecarSettings
from holdfast.sidecar.shutdown import ShutdownCoordinator
from holdfast.train.notice import Notice

NOTICE = NodeNotice(node="spot-1", deadline=1000.0)
LATER = NodeNotice(node="spot-1", deadline=2000.0)
REPLY = ReportReply(attempt=0, attempt_over=False, save="node spot-1 is about to be taken back")


class Saves(CheckpointPersister):
    """Counts requests; each waits until the test lets it end."""

    def __init__(self) -> None:
        self.count = 0
        self.is_saved = asyncio.Event()

    async def request_save(
        self, send_notice: Callable[[], None], timeout_s: float, is_cancelled: Callable[[], bool]
    ) -> CheckpointName | None:
        self.count += 1
        send_notice()
        await self.is_saved.wait()
        return checkpoint_name(1, 0)


class NoticeLab:
    def __init__(self, folder: Path) -> None:
        file = folder / "notice"
        Notice(file).announce()
        self.state = AttemptState()
        settings = SidecarSettings(job="j", namespace="n", uid="u", attempt=0, index=0, notice_file=file)
        self.shutdown = ShutdownCoordinator(settings, self.state)
        self.saves = self.shutdown.persister = Saves()

    async def saved(self) -> None:
        self.saves.is_saved.set()
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
async def lab(tmp_path: Path) -> NoticeLab:
    return NoticeLab(tmp_path)


async def test_a_notice_is_answered_with_one_save_however_often_it_comes(lab: NoticeLab) -> None:
    assert lab.shutdown.on_node_notice(NOTICE) == "the training is asked to save"
    await lab.saved()
    assert lab.shutdown.on_node_notice(NOTICE) == "the training was asked already"
    lab.shutdown.on_reply(REPLY)
    await lab.saved()
    assert lab.saves.count == 1, "the operator's reply says the same"


async def test_where_the_operator_was_faster_the_agent_asks_for_nothing_new(lab: NoticeLab) -> None:
    lab.shutdown.on_reply(REPLY)
    await lab.saved()
    assert lab.shutdown.on_node_notice(NOTICE) == "the training was asked already"
    await lab.saved()
    assert lab.saves.count == 1


async def test_another_notice_of_the_same_node_is_a_new_one(lab: NoticeLab) -> None:
    lab.shutdown.on_node_notice(NOTICE)
    await lab.saved()
    assert lab.shutdown.on_node_notice(LATER) == "the training is asked to save"
    await lab.saved()
    assert lab.saves.count == 2


async def test_a_save_under_way_is_not_begun_twice(lab: NoticeLab) -> None:
    lab.shutdown.on_node_notice(NOTICE)
    await asyncio.sleep(0)
    assert lab.shutdown.on_node_notice(LATER) == "the training is asked to save already"
    await lab.saved()
    assert lab.saves.count == 1


@pytest.mark.parametrize("ending", ["stop", "is_over", "is_saved"])
async def test_a_training_that_is_to_end_is_not_asked(lab: NoticeLab, ending: str) -> None:
    setattr(lab.state, ending, "EarlyStopped" if ending == "stop" else True)
    assert lab.shutdown.on_node_notice(NOTICE) == "the training is to end already"
    await lab.saved()
    assert lab.saves.count == 0
