"""Replicas that are made from container checkpoints, on every engine."""

import pytest

from holdfast.api.meta import Object
from holdfast.cluster.protocol import JSON, DeleteOptions
from holdfast.cluster.resources import JOBS, PODS
from tests.contract.engine import Engine
from tests.contract.waiting import gone, listed, until
from tests.controllers.lab import seen_as
from tests.spotinstancejob.controller.lab import SpotLab

pytestmark = pytest.mark.usefixtures("operator")
BASE_IMAGE = "registry.invalid/training@sha256:" + "b" * 64


class SeenPod(Object, frozen=True, kw_only=True):
    spec: JSON
    status: JSON = {}


SEEN_PODS = seen_as(SeenPod, PODS)


def image_of(pod: SeenPod) -> str:
    image: str = pod.spec["containers"][0]["image"]
    return image


async def pod_of(lab: SpotLab, job: str) -> SeenPod:
    """The pod of that Job, once it is there."""
    (found,) = await listed(
        lab.cluster, SEEN_PODS, lab.namespace, lambda items: len(items) == 1, f"pod of {job}", labels=f"job-name={job}"
    )
    return found


async def test_a_restored_replica_names_its_checkpoint_as_its_image_once_what_it_was_made_of_is_on_the_node(
    lab: SpotLab,
) -> None:
    lab.registry.labels = {"base-image": BASE_IMAGE}
    await lab.apply_manifests(checkpoints={"mode": "container"})
    await lab.until_running()
    lab.agents.holds = True
    await lab.cloud.preempt(lab.key("my-training-job-r0-0-m0"))
    (backup,) = await lab.open_backups(1)
    image = await lab.agents.push(backup)
    back = await lab.until_attempt(0, 1)
    assert back.status.checkpoint_mode == "container"
    assert back.replica(0).restored_from == image
    restored = await pod_of(lab, "my-training-job-r0-1")
    assert image_of(restored) == f"{image.partition(':')[0]}@{image.partition('@')[2]}"
    await gone(lab.cluster, PODS, lab.key("my-training-job-r0-1-base-image"))
    assert restored.spec["containers"][0]["command"] == ["python", "train.py"]


@pytest.mark.parametrize("operator_options", [{"registry_retry_s": 0.2}])
async def test_while_the_registry_is_away_a_restore_waits_and_says_so(lab: SpotLab) -> None:
    await lab.apply_manifests(checkpoints={"mode": "container"})
    await lab.until_running()
    lab.agents.holds = True
    lab.registry.problem = "gcr.io does not answer"
    await lab.cloud.preempt(lab.key("my-training-job-r0-0-m0"))
    (backup,) = await lab.open_backups(1)
    image = await lab.agents.push(backup)
    said = await lab.until_says("gcr.io does not answer")
    assert "waiting for the registry to describe" in said.message
    lab.registry.problem = ""
    back = await lab.until_attempt(0, 1)
    assert back.replica(0).restored_from == image


async def refuse(lab: SpotLab, job: str) -> None:
    """The runtime can't make the container, and says so; the pod goes when its Job is deleted."""
    pod = await pod_of(lab, job)
    waiting = {"reason": "CreateContainerError", "message": "the checkpoint archive is broken"}
    status = {"name": "training", "image": "", "imageID": "", "ready": False, "restartCount": 0}
    containers = [{**status, "state": {"waiting": waiting}}]
    await lab.cluster.patch_status(
        PODS, pod.metadata.key, {"status": {"phase": "Pending", "containerStatuses": containers}}
    )
    await until(lab.cluster, JOBS, lab.key(job), lambda it: it.metadata.deletion_timestamp, "is being deleted")
    await lab.cluster.delete(PODS, pod.metadata.key, DeleteOptions(grace_period_s=0))


@pytest.mark.parametrize("operator_options", [{"retry_s": 0.1}])
async def test_an_image_that_fails_to_restore_twice_is_set_aside_and_the_one_before_is_used(
    lab: SpotLab, engine: Engine
) -> None:
    await lab.apply_manifests(checkpoints={"mode": "container", "checkpointInterval": "2s"}, replicas=1)
    await lab.until_running(1)
    await lab.until(lambda it: it.status.checkpoint_number >= 2, "is saved twice")
    await lab.until_saved()
    lab.cloud.holds_new = True
    await lab.cloud.preempt(lab.key("my-training-job-r0-0-m0"))
    machine = lab.key("my-training-job-r0-1-m0")
    await lab.machines(lambda found: machine.name in found)
    await engine.freeze_node(await lab.cloud.add_node(machine))
    await lab.cloud.bring_up(machine)
    first = await lab.until_attempt(0, 1, "Starting")
    await refuse(lab, "my-training-job-r0-1")
    second = await lab.until_attempt(0, 2, "Starting")
    await refuse(lab, "my-training-job-r0-2")
    third = await lab.until_attempt(0, 3, "Starting")
    newest = first.replica(0).restored_from
    assert second.replica(0).restored_from == newest
    (failures,) = third.status.image_failures
    assert (failures.image, failures.restore) == (newest, 2)
    assert third.replica(0).restored_from not in (newest, None)
    assert third.replica(0).machine == machine.name
    assert third.status.restarts is not None
    assert third.status.restarts.application == 0
