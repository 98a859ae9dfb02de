"""The life of a SpotInstanceJob, on every engine."""

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.resources import JOBS, PROVISIONED_INSTANCES
from tests.contract.engine import Engine
from tests.contract.pool import Pool
from tests.contract.waiting import gone
from tests.spotinstancejob.controller.lab import GPU, SpotLab

pytestmark = pytest.mark.usefixtures("operator")


@pytest.mark.every_engine
async def test_the_manifests_run_from_apply_to_success_and_every_machine_is_given_back(
    lab: SpotLab, engine: Engine
) -> None:
    await lab.apply_manifests()
    running = await lab.until_running()
    assert [(each.name, each.phase) for each in running.status.job_statuses] == [
        ("my-training-job-r0", "Running"),
        ("my-training-job-r1", "Running"),
    ]
    machines = await lab.machines(bool)
    assert sorted(machines) == ["my-training-job-r0-0-m0", "my-training-job-r1-0-m0"]
    assert {each.status.node_name for each in machines.values() if each.status} == {
        each.node_name for each in running.status.job_statuses
    }
    assert running.holds("Running")
    assert running.reason("Provisioning") == "NotNeeded"
    await lab.end_pod("my-training-job-r1", engine.end_pod)
    done = await lab.until_phase("Succeeded")
    assert done.status.completion_time
    assert done.message == "Job my-training-job-r1 has succeeded"
    assert [each.phase for each in done.status.job_statuses] == ["Stopped", "Succeeded"]
    await gone(lab.cluster, JOBS, lab.key("my-training-job-r0"))
    await lab.machines(lambda found: not found)
    assert lab.cloud.nodes == set()
    assert list(await lab.jobs()) == ["my-training-job-r1"]


@pytest.mark.every_engine
async def test_a_preempted_replica_goes_on_from_the_checkpoint_of_the_survivor_on_a_new_machine(lab: SpotLab) -> None:
    await lab.apply_manifests()
    await lab.until_running()
    lab.agents.holds = True
    await lab.cloud.notice(lab.key("my-training-job-r0-0-m0"))
    (backup,) = await lab.open_backups(1)
    assert backup.name == "my-training-job-r1-c1"
    lost = await lab.until_phase("Recovering")
    assert lost.replica(0).cause == "preemption"
    assert lost.holds("Recovering")
    assert lost.status.active_replicas == 1
    assert (await lab.job("my-training-job-r0")).metadata.deletion_timestamp == ""
    image = await lab.agents.push(backup)
    back = await lab.until_attempt(0, 1)
    assert back.replica(0).restored_from == image
    (recovery,) = back.status.recoveries
    assert (recovery.replica, recovery.cause, recovery.source, recovery.image) == (0, "preemption", "survivor", image)
    assert back.status.restarts
    assert back.status.restarts.preemption == 1
    pod = next(each for each in await lab.pods() if each.metadata.name.startswith("my-training-job-r0-1"))
    assert pod.spec.node_name == back.replica(0).node_name
    await lab.machines(lambda found: sorted(found) == ["my-training-job-r0-1-m0", "my-training-job-r1-0-m0"])


async def test_when_both_are_preempted_both_go_on_from_the_newest_image_of_the_repository(lab: SpotLab) -> None:
    await lab.apply_manifests(checkpoints={"checkpointInterval": "2s"})
    await lab.until_running()
    await lab.until_saved()
    assert (await lab.get()).holds("Checkpointed")
    lab.agents.failure = "PodGone", "its pod was gone before it was saved"
    for number in (0, 1):
        await lab.cloud.preempt(lab.key(f"my-training-job-r{number}-0-m0"))
    await lab.until_attempt(0, 1)
    back = await lab.until_attempt(1, 1)
    assert {each.source for each in back.status.recoveries} == {"repository"}
    assert {each.restored_from for each in back.status.job_statuses} == {back.status.last_checkpoint_image}


async def test_free_gpus_are_used_first_and_a_machine_is_ordered_for_what_is_missing(lab: SpotLab, pool: Pool) -> None:
    node = await pool.add(resources={GPU: "1"})
    await lab.apply_manifests()
    running = await lab.until_running()
    nodes = {each.node_name for each in running.status.job_statuses}
    assert node in nodes
    assert len(nodes) == 2
    assert len(await lab.machines(bool)) == 1


async def test_replicas_are_on_distinct_nodes_even_where_one_has_room_for_all(lab: SpotLab, pool: Pool) -> None:
    await pool.add(resources={GPU: "8"})
    await lab.apply_manifests()
    running = await lab.until_running()
    assert len({each.node_name for each in running.status.job_statuses}) == 2


async def test_a_job_is_saved_and_stopped_by_suspend_and_goes_on_from_its_image(lab: SpotLab) -> None:
    await lab.apply_manifests()
    await lab.until_running()
    lab.agents.holds = True
    await lab.patch(suspend=True)
    keys = await lab.open_backups(2)
    said = await lab.until_says("saved before all is stopped")
    assert said.status.phase == "Suspended"
    for key in keys:
        await lab.agents.push(key)
    stopped = await lab.until(lambda it: it.status.active_replicas == 0, "is stopped")
    assert {each.phase for each in stopped.status.job_statuses} == {"Stopped"}
    await lab.machines(lambda found: not found)
    await gone(lab.cluster, JOBS, lab.key("my-training-job-r0"))
    assert "set it to false" in stopped.message
    lab.agents.holds = False
    await lab.patch(suspend=False)
    again = await lab.until_running()
    assert [each.attempt for each in again.status.job_statuses] == [1, 1]
    assert {each.restored_from for each in again.status.job_statuses} == {stopped.status.last_checkpoint_image}
    assert again.status.recoveries == ()


async def test_the_replica_that_started_last_goes_first_and_another_may_come(lab: SpotLab) -> None:
    await lab.apply_manifests(replicas=1)
    await lab.until_running(1)
    await lab.patch(replicas=3)
    await lab.until_running(3)
    await lab.patch(replicas=1)
    one = await lab.until(lambda it: len(it.status.job_statuses) == 1, "has one replica")
    assert one.status.job_statuses[0].name == "my-training-job-r0"
    await lab.machines(lambda found: list(found) == ["my-training-job-r0-0-m0"])


async def test_the_failure_of_the_training_is_retried_on_the_same_machine_until_the_limit(
    lab: SpotLab, engine: Engine
) -> None:
    await lab.apply_manifests(replicas=1, job_spec={"backoffLimit": 1})
    await lab.until_running(1)

    async def fail(key: Key) -> None:
        await engine.end_pod(key, exit_code=1)

    await lab.end_pod("my-training-job-r0", fail)
    again = await lab.until_attempt(0, 1)
    assert again.replica(0).machine == "my-training-job-r0-0-m0"
    await lab.end_pod("my-training-job-r0-1", fail)
    failed = await lab.until_phase("Failed")
    assert "after 1 of 1 restarts of backoffLimit" in failed.message
    await lab.machines(lambda found: not found)


async def test_a_stockout_is_followed_by_another_zone_and_said_when_all_have_none(lab: SpotLab) -> None:
    await lab.create_template(zones=["us-central1-b"])
    lab.cloud.holds_new = True
    await lab.submit(replicas=1)
    await lab.machines(lambda found: list(found) == ["my-training-job-r0-0-m0"])
    await lab.cloud.refuse(lab.key("my-training-job-r0-0-m0"))
    machines = await lab.machines(lambda found: list(found) == ["my-training-job-r0-0-m1"])
    assert machines["my-training-job-r0-0-m1"].spec.zone == "us-central1-a"  # nobody has told the pools here
    it = await lab.get()
    assert it.replica(0).machine_try == 2


async def test_a_deleted_job_leaves_nothing(lab: SpotLab) -> None:
    await lab.apply_manifests()
    await lab.until_running()
    await lab.delete()
    await lab.gone()
    await lab.machines(lambda found: not found)
    await gone(lab.cluster, JOBS, lab.key("my-training-job-r0"))
    await gone(lab.cluster, PROVISIONED_INSTANCES, lab.key("my-training-job-r0-0-m0"))
    assert lab.cloud.nodes == set()
