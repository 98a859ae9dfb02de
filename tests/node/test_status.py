"""The phases of a run reach its object once each, whatever the API server does meanwhile."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import Invalid, Unreachable
from holdfast.cluster.resources import CHECKPOINT_BACKUPS
from holdfast.node import agent as agent_module
from holdfast.node.parts import AgentClocks
from holdfast.node.progress import RunProgress
from holdfast.node.status import RunStatusWriter, RunSuperseded, StatusNotWritten
from holdfast.times import format_time
from tests.node.kubelets import saves
from tests.node.lab import AgentLab
from tests.node.test_ends import HeldKubelet
from tests.node.test_life import PHASES


class FlakyCluster:
    """failures: what the next status patches raise; `is_lost` says whether they were carried out all the same."""

    def __init__(self, cluster: Any, *failures: Exception, is_lost: bool = False) -> None:
        self._cluster = cluster
        self._failures = list(failures)
        self._is_lost = is_lost
        self.patches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def patch_status(self, resource: Any, key: Key, patch: Any) -> Any:
        if self._failures:
            failure = self._failures.pop(0)
            if self._is_lost:
                await self._cluster.patch_status(resource, key, patch)
                self.patches += 1
            raise failure
        self.patches += 1
        return await self._cluster.patch_status(resource, key, patch)


async def writer(lab: AgentLab, cluster: Any = None, left_s: float = 60.0) -> RunStatusWriter:
    return RunStatusWriter(
        cluster or lab.plain,
        await lab.backup(),
        now=lambda: datetime.now(UTC),
        sleep=lambda _: asyncio.sleep(0),
        left_s=lambda: left_s,
    )


@pytest.fixture
async def begun(lab: AgentLab) -> AgentLab:
    await lab.start()
    await lab.begin()
    return lab


async def test_a_change_by_somebody_else_is_no_reason_to_give_up(begun: AgentLab) -> None:
    written = await writer(begun)
    await begun.plain.patch(CHECKPOINT_BACKUPS, Key("team", "nightly"), {"metadata": {"annotations": {"a": "b"}}})
    await written.write("Checkpointing", reason="Checkpointing", message="m")
    assert (await begun.status()).phase == "Checkpointing"


@pytest.mark.parametrize("phase", ["Checkpointing", "Completed"])
async def test_a_write_whose_answer_was_lost_is_not_repeated(begun: AgentLab, phase: Any) -> None:
    flaky = FlakyCluster(begun.plain, Unreachable("reset"), is_lost=True)
    await (await writer(begun, flaky)).write(phase, reason="Why", message="m")
    assert flaky.patches == 1
    assert (await begun.status()).phase == phase


async def test_more_words_than_the_schema_takes_are_cut(begun: AgentLab) -> None:
    await (await writer(begun)).write("Failed", reason="CheckpointFailed", message="word " * 10_000)
    status = await begun.status()
    assert status.phase == "Failed"
    assert len(status.message or "") == len(status.conditions[0].message) == 32768


async def test_a_server_that_is_away_is_asked_again(begun: AgentLab) -> None:
    flaky = FlakyCluster(begun.plain, Unreachable("away"), Unreachable("away"))
    await (await writer(begun, flaky)).write("Checkpointing", reason="Checkpointing", message="m")
    assert (await begun.status()).phase == "Checkpointing"


@pytest.mark.parametrize("failure", [Unreachable("away"), Invalid("no")])
async def test_a_server_that_stays_away_or_refuses_is_given_up(begun: AgentLab, failure: Exception) -> None:
    flaky = FlakyCluster(begun.plain, *[failure] * 50)
    with pytest.raises(StatusNotWritten):
        await (await writer(begun, flaky, left_s=0.1)).write("Checkpointing", reason="Checkpointing", message="m")


@pytest.mark.parametrize("change", ["next run", "ended", "deleted", "created anew"])
async def test_nothing_is_written_for_another_run(begun: AgentLab, change: str) -> None:
    written, key = await writer(begun), Key("team", "nightly")
    if change == "next run":
        await begun.begin_run(run=2)
    elif change == "ended":
        await begun.plain.patch_status(CHECKPOINT_BACKUPS, key, {"status": {"phase": "Failed"}})
    else:
        await begun.plain.delete(CHECKPOINT_BACKUPS, key)
    if change == "created anew":
        await begun.begin()
    with pytest.raises(RunSuperseded):
        await written.write("Checkpointing", reason="Checkpointing", message="m")
    if change != "deleted":
        assert (await begun.status()).phase in (None, "Failed")


async def test_a_run_that_is_found_after_its_deadline_is_not_begun(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    await lab.begin_run(run=2, startTime=format_time(datetime.now(UTC) - timedelta(seconds=605)))
    async with lab.agent():
        status = await lab.ended()
    assert status.conditions[0].reason == "DeadlineExceeded"
    assert lab.cluster.phases == ["Failed"]
    assert lab.kubelet.calls == []


@pytest.mark.parametrize("apart", [timedelta(hours=-1), timedelta(hours=1)], ids=["ahead", "behind"])
async def test_a_clock_that_is_another_than_the_operators_neither_ends_a_run_nor_keeps_it(
    lab: AgentLab, apart: timedelta
) -> None:
    await lab.start()
    async with lab.agent():
        await lab.begin()
        assert (await lab.ended()).phase == "Completed"
        await lab.begin_run(run=2, startTime=format_time(datetime.now(UTC) + apart))
        await lab.until(lambda status: status.phase == "Completed" and status.run == 2, "the second run completes")
    assert [int(call.timeout) in range(500, 601) for call in lab.kubelet.calls] == [True, True]


@pytest.mark.parametrize(
    ("began_s", "seen_s", "left_s"),
    [(-100, -99, 500), (-100, None, 500), (+3600, None, 600), (-3600, -100, 500), (+3600, -100, 500)],
)
async def test_how_much_is_left_of_a_run(lab: AgentLab, began_s: int, seen_s: int | None, left_s: int) -> None:
    at, clocks = datetime(2026, 1, 2, tzinfo=UTC), 1000.0
    await lab.start()
    await lab.begin()
    await lab.begin_run(run=2, startTime=format_time(at + timedelta(seconds=began_s)))
    parts = lab.parts(None, clocks=AgentClocks(now=lambda: at, clock=lambda: clocks))
    seen = None if seen_s is None else clocks + seen_s
    assert RunProgress(parts, await lab.backup(), lambda: False, seen).left_s == left_s


async def test_a_step_that_does_not_end_in_time_after_a_stop_is_left_to_the_next_agent(
    lab: AgentLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "STOP_S", 0.05)
    await lab.start()
    await lab.begin()
    held = HeldKubelet()
    lab.kubelet.script = [held, saves]
    async with lab.agent() as agent:
        await held.called.wait()
        agent.stop()
    assert len(lab.leftovers()) == 2, "the archive and the journal"
    async with lab.agent():
        assert (await lab.ended()).phase == "Completed"
    assert lab.leftovers() == []
    assert lab.cluster.phases == PHASES
    assert len(lab.kubelet.calls) == 2
