"""Runs that end early: the backup is deleted, another ends the run, the agent is asked to stop, or all is taken up."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from msgspec import structs

from holdfast.api.meta import Key
from holdfast.checkpoints.images.archive import CheckedArchive
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, PODS
from holdfast.node.archives import ArchiveFolder
from holdfast.node.journal import Journal, RunRecord
from tests.control_plane.waiting import eventually
from tests.node.kubelets import saves
from tests.node.lab import HOST, AgentLab
from tests.node.test_life import PHASES


class HeldKubelet:
    """Saves at once, and answers when it may. archives: what it has written."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def __call__(self, request: web.Request, archive: Path) -> web.StreamResponse:
        answer = await saves(request, archive)
        self.called.set()
        await self.may_answer.wait()
        return answer


async def nothing_left(lab: AgentLab) -> bool:
    return lab.leftovers() == []


async def test_a_backup_that_is_deleted_while_it_is_frozen_ends_its_run_and_leaves_nothing(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    held = HeldKubelet()
    lab.kubelet.script = [held]
    async with lab.agent():
        await held.called.wait()
        await lab.plain.delete(CHECKPOINT_BACKUPS, Key(lab.namespace, "nightly"))
        held.may_answer.set()
        await eventually(lambda: nothing_left(lab), bool, what="archive and journal are gone")
        await lab.begin("another")
        assert (await lab.ended("another")).phase == "Completed"
    assert lab.cluster.phases == ["Checkpointing", *PHASES]
    assert {labels["dev.holdfast.owner-name"] for labels in (await lab.pulled()).values()} == {"another"}


class RuntimeThatGoesOn:
    """Saves later, whether or not anybody still listens."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.may_save = asyncio.Event()
        self.saving: asyncio.Task[web.StreamResponse] | None = None

    async def __call__(self, request: web.Request, archive: Path) -> web.StreamResponse:
        self.saving = asyncio.create_task(self._save(request, archive))
        self.called.set()
        return await asyncio.shield(self.saving)

    async def _save(self, request: web.Request, archive: Path) -> web.StreamResponse:
        await self.may_save.wait()
        return await saves(request, archive)


async def test_what_a_runtime_saves_after_its_backup_was_deleted_is_removed_and_nothing_is_frozen_meanwhile(
    lab: AgentLab,
) -> None:
    await lab.start()
    await lab.begin()
    runtime = RuntimeThatGoesOn()
    lab.kubelet.script = [runtime]
    async with lab.agent():
        await runtime.called.wait()
        await lab.begin("another")
        await lab.plain.delete(CHECKPOINT_BACKUPS, Key(lab.namespace, "nightly"))
        for _ in range(1000):  # the agent hears of it
            await asyncio.sleep(0)
        assert len(lab.kubelet.calls) == 1, "one call at a time"
        runtime.may_save.set()
        assert (await lab.ended("another")).phase == "Completed"
    assert lab.leftovers() == []
    assert len(await lab.pulled()) == 1


async def test_images_that_were_pushed_before_the_backup_was_deleted_stay(lab: AgentLab) -> None:
    await lab.start("trainer", "logger")
    await lab.begin()
    first_pushed, may_go_on = asyncio.Event(), asyncio.Event()

    class HoldingJournal(Journal):
        def write(self, record: RunRecord) -> None:
            super().write(record)
            if any(each.is_pushed for each in record.containers):
                loop.call_soon_threadsafe(first_pushed.set)
                asyncio.run_coroutine_threadsafe(may_go_on.wait(), loop).result()

    loop = asyncio.get_running_loop()
    async with lab.agent(journal=HoldingJournal(lab.journal)):
        await first_pushed.wait()
        await lab.plain.delete(CHECKPOINT_BACKUPS, Key(lab.namespace, "nightly"))
        may_go_on.set()
        await eventually(lambda: nothing_left(lab), bool, what="archives and journal are gone")
    assert [labels["dev.holdfast.container"] for labels in (await lab.pulled()).values()] == ["trainer"]


async def test_a_run_that_another_has_ended_is_given_up_without_a_write(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    held = HeldKubelet()
    lab.kubelet.script = [held]
    async with lab.agent():
        await held.called.wait()
        key = Key(lab.namespace, "nightly")
        await lab.plain.patch_status(CHECKPOINT_BACKUPS, key, {"status": {"phase": "Failed", "message": "too late"}})
        held.may_answer.set()
        await eventually(lambda: nothing_left(lab), bool, what="archive and journal are gone")
    assert lab.cluster.phases == ["Checkpointing"]
    assert (await lab.status()).message == "too late"


async def test_an_agent_that_is_asked_to_end_ends_the_step_and_the_next_one_goes_on_from_there(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    held = HeldKubelet()
    lab.kubelet.script = [held]
    async with lab.agent() as agent:
        await held.called.wait()
        agent.stop()
        held.may_answer.set()
    assert lab.cluster.phases == ["Checkpointing"]
    assert len(lab.leftovers()) == 2, "the archive and the journal"
    async with lab.agent():
        assert (await lab.ended()).phase == "Completed"
    assert len(lab.kubelet.calls) == 1, "the container is not frozen a second time"
    assert lab.cluster.phases == PHASES
    assert lab.leftovers() == []


async def interrupted(lab: AgentLab) -> None:
    """A run whose agent ended after the kubelet had answered."""
    await lab.start()
    await lab.begin()
    held = HeldKubelet()
    lab.kubelet.script = [held]
    async with lab.agent() as agent:
        await held.called.wait()
        agent.stop()
        held.may_answer.set()


async def test_archives_of_another_start_of_the_machine_are_not_trusted(lab: AgentLab) -> None:
    await interrupted(lab)
    async with lab.agent(host=structs.replace(HOST, boot_id="boot-2")):
        assert (await lab.ended()).phase == "Completed"
    assert len(lab.kubelet.calls) == 2
    assert lab.leftovers() == []


async def test_an_archive_that_is_not_as_the_journal_names_it_is_made_anew(lab: AgentLab) -> None:
    await interrupted(lab)
    (archive,) = await asyncio.to_thread(lambda: list(lab.checkpoints.iterdir()))
    archive.write_bytes(b"shorter")
    async with lab.agent():
        assert (await lab.ended()).phase == "Completed"
    assert len(lab.kubelet.calls) == 2
    assert lab.leftovers() == []


async def test_the_files_of_a_run_that_ended_meanwhile_are_removed_at_the_start(lab: AgentLab) -> None:
    await interrupted(lab)
    key = Key(lab.namespace, "nightly")
    await lab.plain.patch_status(CHECKPOINT_BACKUPS, key, {"status": {"phase": "Failed"}})
    foreign = lab.checkpoints / "checkpoint-numbers_team-trainer-2026-01-02T03:04:05Z.tar"
    foreign.write_bytes(b"saved by hand")
    lab.cluster.patches.clear()
    async with lab.agent():
        await eventually(lambda: asyncio.sleep(0, lab.leftovers()), lambda left: left == [foreign.name], what="clean")
    assert lab.cluster.patches == []


async def test_files_that_can_not_be_removed_at_the_start_keep_no_other_run_waiting(lab: AgentLab) -> None:
    await interrupted(lab)
    await lab.plain.patch_status(CHECKPOINT_BACKUPS, Key(lab.namespace, "nightly"), {"status": {"phase": "Failed"}})
    (archive,) = await asyncio.to_thread(lambda: list(lab.checkpoints.iterdir()))
    archive.unlink()
    archive.mkdir()
    await lab.create_pod("other")
    async with lab.agent():
        await lab.begin("another", pod="other")
        assert (await lab.ended("another")).phase == "Completed"
    assert len(lab.leftovers()) == 2, "the journal still names what is there"


class Unexpected(ArchiveFolder):
    """What nobody has thought of."""

    def check(self, path: Path) -> CheckedArchive:
        raise RuntimeError("unexpected")


async def test_an_error_that_nobody_has_thought_of_is_told_and_the_agent_goes_on(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    async with lab.agent(archives=Unexpected(lab.checkpoints, lab.journal)):
        status = await lab.ended()
        assert (status.phase, status.conditions[0].reason) == ("Failed", "InternalError")
        assert status.message == "an error in holdfast: the log of the agent on n1 says more"
        await lab.begin_run(run=2)
        assert (await lab.until(lambda status: status.phase == "Failed" and status.run == 2, "the next run")).message
    assert lab.leftovers() == []


@pytest.mark.parametrize("change", ["gone", "replaced", "ended"])
async def test_a_pod_that_is_not_the_runs_any_more_is_not_frozen(lab: AgentLab, change: str) -> None:
    await lab.start()
    await lab.begin()
    key = Key(lab.namespace, "numbers")
    if change == "ended":
        await lab.plain.patch_status(PODS, key, {"status": {"phase": "Succeeded"}})
    else:
        await lab.remove_pod("numbers")
    if change == "replaced":
        await lab.create_pod("numbers")
    lab.cluster.patches.clear()
    async with lab.agent():
        status = await lab.ended()
    reasons = {"gone": "PodGone", "replaced": "PodReplaced", "ended": "PodNotRunning"}
    assert status.conditions[0].reason == reasons[change]
    assert lab.kubelet.calls == []
    assert lab.cluster.phases == ["Failed"]


@pytest.mark.parametrize("restarts", [False, True], ids=["the same agent", "the next agent"])
async def test_another_pod_of_the_name_on_the_node_is_never_taken_for_the_runs(lab: AgentLab, restarts: bool) -> None:
    await lab.start()
    await lab.begin()
    held = HeldKubelet()
    lab.kubelet.script = [held]
    async with lab.agent() as agent:
        await held.called.wait()
        await lab.remove_pod("numbers")
        await lab.create_pod("numbers")
        if restarts:
            agent.stop()
        held.may_answer.set()
        if not restarts:
            await lab.ended()
    async with lab.agent():
        status = await lab.ended()
    assert status.conditions[0].reason == "PodReplaced"
    assert await lab.pulled() == {}
    assert lab.leftovers() == []


async def test_what_was_saved_of_a_pod_counts_though_the_next_one_of_its_name_is_elsewhere(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    held = HeldKubelet()
    lab.kubelet.script = [held]
    async with lab.agent():
        await held.called.wait()
        await lab.remove_pod("numbers")
        await lab.create_pod("numbers", nodeName="n2")
        held.may_answer.set()
        assert (await lab.ended()).phase == "Completed"


async def test_a_container_that_the_pod_has_not_is_named_with_those_that_it_has(lab: AgentLab) -> None:
    await lab.start("trainer", "logger")
    await lab.begin(containers=[{"name": "trainr"}])
    async with lab.agent():
        status = await lab.ended()
    assert status.conditions[0].reason == "ContainerUnknown"
    assert status.message == "the pod has no container trainr: write one of trainer, logger into spec.containers"
    assert lab.kubelet.calls == []
