"""Deadlines and schedules, with clocks that the test sets."""

from datetime import timedelta

import pytest

from holdfast.cluster.resources import PODS
from holdfast.times import format_time
from tests.checkpointbackup.controller.lab import BackupLab
from tests.contract.pool import Pool
from tests.contract.waiting import gone

pytestmark = pytest.mark.usefixtures("timed_operator")


async def test_no_agent_on_the_node_is_said_after_thirty_seconds_and_fails_the_run_at_the_deadline(
    lab: BackupLab, pool: Pool
) -> None:
    node = await pool.add()
    await lab.add_pod(node=node)
    await lab.ask()
    await lab.until_run()
    lab.clock.advance(31)
    await lab.touch()
    late = await lab.until_says("no ready agent of holdfast is seen there")
    assert (late.reason(), late.status.phase) == ("NoAgent", None)
    assert "manifests/node" in await lab.event("Waiting")
    lab.clock.advance(570)
    await lab.touch()
    failed = await lab.until_phase("Failed")
    assert (failed.reason("Failed"), failed.holds("Failed")) == ("NoAgent", True)
    assert "the 600 s of spec.timeoutSeconds have passed" in failed.message


async def test_an_agent_that_comes_late_is_waited_for(lab: BackupLab, pool: Pool) -> None:
    node = await pool.add()
    await lab.add_pod(node=node)
    await lab.ask()
    await lab.until_run()
    lab.clock.advance(31)
    await lab.touch()
    await lab.until_says("no ready agent")
    await lab.add_agent(node)
    await lab.push_image()
    assert (await lab.get()).holds("Completed")


async def test_a_run_that_its_agent_does_not_end_is_ended_ten_seconds_after_the_deadline(
    lab: BackupLab, pool: Pool
) -> None:
    node = await pool.add()
    await lab.add_pod(node=node)
    await lab.add_agent(node)
    await lab.ask()
    await lab.until_run()
    await lab.write_phase("ImagePushing")
    lab.clock.advance(611)
    await lab.touch()
    failed = await lab.until_phase("Failed")
    assert failed.reason() == "DeadlineExceeded"
    assert failed.message.startswith("run 1 stands at ImagePushing")


async def test_a_pod_that_never_comes_fails_the_run_at_the_deadline(lab: BackupLab) -> None:
    await lab.ask()
    waiting = await lab.until_says("there is no pod trainer")
    assert f"waiting until {format_time(lab.clock.wall + timedelta(seconds=600))}" in waiting.message
    lab.clock.advance(601)
    await lab.touch()
    failed = await lab.until_phase("Failed")
    assert (failed.reason(), failed.status.run, failed.status.node_name) == ("PodMissing", 1, "")


async def test_a_schedule_makes_one_run_after_the_other(lab: BackupLab, pool: Pool) -> None:
    await lab.add_pod(node=await pool.add())
    await lab.ask(schedule="*/30 * * * *", timeZone="Europe/Berlin")
    first = await lab.until(lambda it: it.status.next_checkpoint_time, "is scheduled")
    assert (first.status.next_checkpoint_time, first.status.run) == ("2026-01-01T00:30:00Z", 0)
    assert (first.holds("Scheduled"), first.message) == (True, "")
    for run, due in ((1, "2026-01-01T01:00:00Z"), (2, "2026-01-01T01:30:00Z")):
        lab.clock.advance(1200 if run == 1 else 1800)
        await lab.touch()
        begun = await lab.until_run(run)
        assert begun.status.next_checkpoint_time == due
        done = await lab.push_image()
        assert (done.status.run, done.status.missed_runs, done.holds("Scheduled")) == (run, 0, True)


async def test_runs_that_are_due_while_one_is_under_way_are_skipped_and_counted(lab: BackupLab, pool: Pool) -> None:
    await lab.add_pod(node=await pool.add())
    await lab.ask(schedule="*/5 * * * *")
    await lab.until(lambda it: it.status.next_checkpoint_time, "is scheduled")
    lab.clock.advance(300)
    await lab.touch()
    await lab.until_run()
    await lab.write_phase("Checkpointing")
    lab.clock.advance(301)
    await lab.touch()
    skipped = await lab.until(lambda it: it.status.missed_runs == 1, "has skipped one")
    assert (skipped.status.phase, skipped.status.run) == ("Checkpointing", 1)
    assert skipped.status.next_checkpoint_time == "2026-01-01T00:25:00Z"


async def test_several_missed_runs_become_one_and_it_is_said(lab: BackupLab, pool: Pool) -> None:
    await lab.add_pod(node=await pool.add())
    await lab.ask(schedule="*/30 * * * *")
    await lab.until(lambda it: it.status.next_checkpoint_time, "is scheduled")
    lab.clock.advance(3 * 3600)
    await lab.touch()
    begun = await lab.until_run()
    assert begun.status.missed_runs == 5
    assert "(5 more were due, and are this one)" in begun.message
    assert (await lab.event("RunsMissed")).startswith("6 runs were due since 2026-01-01T00:30:00Z")


async def test_the_next_pod_of_the_name_is_the_next_runs_and_one_that_has_ended_ends_the_schedule(
    lab: BackupLab, pool: Pool
) -> None:
    node = await pool.add()
    first = await lab.add_pod(node=node, restartPolicy="Never")
    await lab.ask(schedule="*/30 * * * *")
    await lab.until(lambda it: it.status.next_checkpoint_time, "is scheduled")
    lab.clock.advance(1200)
    await lab.touch()
    assert (await lab.until_run(1)).status.pod_uid == first.metadata.uid
    await lab.push_image()
    await lab.cluster.delete(PODS, first.metadata.key)
    await gone(lab.cluster, PODS, first.metadata.key)
    second = await lab.add_pod(node=node, restartPolicy="Never")
    lab.clock.advance(1800)
    await lab.touch()
    assert (await lab.until_run(2)).status.pod_uid == second.metadata.uid
    await lab.push_image()
    await pool.end(second)
    over = await lab.until_says("the schedule has ended: pod trainer has ended (Succeeded)")
    assert (over.status.phase, over.status.next_checkpoint_time) == ("Completed", None)
    assert (over.holds("Scheduled"), over.reason("Scheduled")) == (False, "PodEnded")
    await lab.event("ScheduleEnded")


async def test_a_suspended_schedule_goes_on_from_when_it_is_released(lab: BackupLab, pool: Pool) -> None:
    await lab.add_pod(node=await pool.add())
    await lab.ask(schedule="*/30 * * * *", suspend=True)
    held = await lab.until_says("spec.suspend is true")
    assert (held.status.next_checkpoint_time, held.reason("Scheduled")) == (None, "Suspended")
    lab.clock.advance(86400)
    await lab.patch(suspend=False)
    freed = await lab.until(lambda it: it.status.next_checkpoint_time, "is scheduled")
    assert (freed.status.next_checkpoint_time, freed.status.missed_runs) == ("2026-01-02T00:30:00Z", 0)
    assert freed.message == ""


async def test_a_schedule_that_is_refused_can_be_corrected(lab: BackupLab) -> None:
    await lab.ask(schedule="0 0 31 4 *")
    refused = await lab.until_phase("Failed")
    assert (refused.reason(), "fits no date" in refused.message) == ("InvalidSchedule", True)
    await lab.patch(schedule="0 0 30 4 *")
    corrected = await lab.until(lambda it: it.status.next_checkpoint_time, "is scheduled")
    assert (corrected.status.phase, corrected.status.next_checkpoint_time) == (None, "2026-04-30T00:00:00Z")


async def test_a_clock_that_is_set_back_begins_no_run_twice(lab: BackupLab, pool: Pool) -> None:
    await lab.add_pod(node=await pool.add())
    await lab.ask(schedule="*/30 * * * *")
    await lab.until(lambda it: it.status.next_checkpoint_time, "is scheduled")
    lab.clock.advance(1201)
    await lab.touch()
    await lab.until_run()
    await lab.push_image()
    lab.clock.wall -= timedelta(seconds=10)
    await lab.touch()
    lab.clock.advance(15)  # half past comes again
    before = (await lab.touch()).metadata.resource_version
    await lab.ask("other", pod="nobody")
    await lab.until_says("there is no pod nobody", "other")
    after = await lab.get()
    assert (after.status.run, after.metadata.resource_version) == (1, before)
