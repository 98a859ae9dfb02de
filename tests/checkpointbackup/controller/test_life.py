"""The life of a CheckpointBackup, on every engine: the operator begins runs, and an agent carries them out."""

from collections.abc import Iterable
from functools import partial

import pytest

from holdfast.api.checkpointbackup import NODE_LABEL
from holdfast.api.meta import Key
from holdfast.cluster.protocol import DeleteOptions
from holdfast.cluster.resources import NODES, PODS
from tests.checkpointbackup.controller.lab import CONTAINER, BackupLab
from tests.contract.pool import Pool
from tests.contract.waiting import gone
from tests.control_plane.waiting import eventually

pytestmark = pytest.mark.usefixtures("operator")


async def test_a_run_begins_for_the_agent_of_the_pods_node_and_its_phases_are_read(lab: BackupLab, pool: Pool) -> None:
    node = await pool.add()
    pod = await lab.add_pod(node=node)
    await lab.ask()
    begun = await lab.until_run()
    status = begun.status
    assert begun.metadata.labels[NODE_LABEL] == node
    assert (status.phase, status.mode, status.node_name) == (None, "container", node)
    assert (status.pod_uid, status.next_checkpoint_time, status.missed_runs) == (pod.metadata.uid, None, 0)
    assert status.start_time
    assert "no sidecar of holdfast" in status.mode_reason
    assert begun.message == f"run 1 has begun and waits for the agent of node {node}"
    assert (begun.reason(), begun.holds("Completed"), begun.holds("Failed")) == ("Started", False, False)
    done = await lab.push_image()
    assert (done.holds("Completed"), done.holds("Failed")) == (True, False)
    assert await lab.event_reasons(last="RunStarted") == ["RunStarted"]
    assert (await lab.get()).metadata.resource_version == done.metadata.resource_version


async def test_with_stop_pod_the_operator_deletes_the_pod_when_its_images_are_pushed(
    lab: BackupLab, pool: Pool
) -> None:
    pod = await lab.add_pod(node=await pool.add())
    await lab.ask(stopPod=True)
    await lab.until_run()
    await lab.push_image(complete=False)
    done = await lab.until_phase("CompletedPodDeleted")
    assert (done.reason(), done.holds("Completed")) == ("PodDeleted", True)
    assert done.status.built_images
    await gone(lab.cluster, PODS, pod.metadata.key)


async def test_two_backups_of_one_pod_take_it_one_after_the_other(lab: BackupLab, pool: Pool) -> None:
    await lab.add_pod(node=await pool.add())
    names = ("one", "two")
    for name in names:
        await lab.ask(name)
    waiting = await eventually(
        partial(waiting_backups, lab, names), lambda found: len(found) == 1, what="one runs and one waits"
    )
    (second,) = waiting
    (first,) = set(names) - {second}
    assert (await lab.get(second)).message == f"waiting for the run of CheckpointBackup {first}"
    await lab.until_run(1, first)
    await lab.push_image(first)
    await lab.until_run(1, second)


async def waiting_backups(lab: BackupLab, names: Iterable[str]) -> list[str]:
    found = [(name, await lab.get(name)) for name in names]
    return [name for name, it in found if it.reason() == "AnotherBackup"]


async def test_a_backup_that_is_deleted_while_it_runs_leaves_its_pod_to_the_next(lab: BackupLab, pool: Pool) -> None:
    await lab.add_pod(node=await pool.add())
    await lab.ask("first")
    await lab.until_run(1, "first")
    await lab.write_phase("Checkpointing", "first")
    await lab.ask("second")
    await lab.until_says("waiting for the run of CheckpointBackup first", "second")
    await lab.delete("first")
    await lab.gone("first")
    await lab.until_run(1, "second")


async def test_a_backup_made_again_under_its_name_counts_from_one(lab: BackupLab, pool: Pool) -> None:
    await lab.add_pod(node=await pool.add())
    await lab.ask()
    first = await lab.until_run()
    await lab.push_image()
    await lab.delete()
    await lab.gone()
    await lab.ask()
    second = await lab.until_run()
    assert second.metadata.uid != first.metadata.uid


async def test_a_run_waits_for_its_pod(lab: BackupLab, pool: Pool) -> None:
    await lab.ask()
    missing = await lab.until_says("there is no pod trainer; waiting until")
    assert (missing.reason(), missing.status.phase, missing.status.run) == ("PodMissing", None, 0)
    await lab.add_pod()
    await lab.until_says("pod trainer is not running yet (Pending)")
    await lab.cluster.delete(PODS, lab.key("trainer"))
    await gone(lab.cluster, PODS, lab.key("trainer"))
    await lab.add_pod(node=await pool.add())
    await lab.until_run()


async def test_a_pod_that_has_ended_fails_the_run(lab: BackupLab, pool: Pool) -> None:
    pod = await lab.add_pod(node=await pool.add(), restartPolicy="Never")
    await pool.end(pod)
    await lab.ask()
    failed = await lab.until_phase("Failed")
    assert (failed.reason("Failed"), failed.holds("Failed"), failed.status.run) == ("PodEnded", True, 1)
    assert await lab.event("Failed") == "pod trainer has ended (Succeeded): there is nothing left to save"


async def test_a_pod_that_is_deleted_before_the_agent_begins_fails_the_run(lab: BackupLab, pool: Pool) -> None:
    pod = await lab.add_pod(node=await pool.add())
    await lab.ask()
    await lab.until_run()
    await lab.cluster.delete(PODS, pod.metadata.key, DeleteOptions(grace_period_s=0))
    failed = await lab.until_phase("Failed")
    assert (failed.reason(), failed.message) == ("PodGone", "pod trainer was deleted before it was saved")


async def test_a_node_that_is_deleted_fails_the_run(lab: BackupLab, pool: Pool) -> None:
    node = await pool.add()
    await lab.add_pod(node=node)
    await lab.ask()
    await lab.until_run()
    await lab.write_phase("ImagePushing")
    await lab.cluster.delete(NODES, Key("", node))
    assert (await lab.until_phase("Failed")).reason() == "NodeGone"


async def test_a_pod_of_another_namespace_is_refused(lab: BackupLab) -> None:
    await lab.ask(podRef={"name": "trainer", "namespace": "default"})
    refused = await lab.until_phase("Failed")
    assert (refused.reason(), refused.status.run) == ("OtherNamespace", 0)
    assert "memory is not to be had across namespaces" in refused.message


async def test_a_volume_that_would_be_lost_is_refused_by_auto_and_warned_of_by_container(
    lab: BackupLab, pool: Pool
) -> None:
    mounts = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    container = {**CONTAINER, **mounts, "livenessProbe": {"exec": {"command": ["true"]}, "failureThreshold": 1}}
    volumes = [{"name": "data", "emptyDir": {}}]
    await lab.add_pod(node=await pool.add(), containers=[container], volumes=volumes)
    await lab.ask("auto")
    refused = await lab.until_phase("Failed", "auto")
    assert refused.reason() == "WouldLoseFiles"
    assert "/data of container main (volume data, emptyDir)" in refused.message
    await lab.ask("forced", mode="container")
    forced = await lab.until_run(1, "forced")
    assert (forced.status.mode, forced.status.mode_reason) == ("container", "spec.mode is container")
    assert "/data of container main" in await lab.event("WouldLoseFiles", "forced")
    assert "fails after 1 s without an answer" in await lab.event("ProbeTooShort", "forced")


async def test_a_second_look_at_a_settled_backup_writes_nothing(lab: BackupLab, pool: Pool) -> None:
    await lab.add_pod(node=await pool.add())
    await lab.ask("once")
    await lab.until_run(1, "once")
    await lab.push_image("once")
    await lab.ask("yearly", schedule="@yearly")
    await lab.until(lambda it: it.status.next_checkpoint_time, "is scheduled", "yearly")
    await lab.ask("held", suspend=True)
    await lab.until_says("spec.suspend is true", "held")
    await lab.ask("broken", schedule="0 0 30 2 *")
    await lab.until_phase("Failed", "broken")
    names = ("once", "yearly", "held", "broken")
    before = {name: (await lab.touch(name)).metadata.resource_version for name in names}
    await lab.ask("later", pod="nobody")
    await lab.until_says("there is no pod nobody", "later")  # everyone before it was looked at
    assert {name: (await lab.get(name)).metadata.resource_version for name in names} == before
