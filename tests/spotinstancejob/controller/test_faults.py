"""What goes wrong around a SpotInstanceJob, on every engine."""

from typing import Any

import pytest

from holdfast.cluster.resources import JOBS, PODS, PROVISIONED_INSTANCES, SPOT_INSTANCE_JOBS, SPOT_INSTANCE_VMS
from tests.contract.engine import Engine
from tests.contract.pods import POOL, pod
from tests.contract.pool import Pool
from tests.contract.waiting import gone
from tests.spotinstancejob.controller.lab import GPU, SpotLab
from tests.spotinstancejob.machines import condition

pytestmark = pytest.mark.usefixtures("operator")
FIRST, SECOND = "my-training-job-r0-0-m0", "my-training-job-r1-0-m0"


@pytest.mark.parametrize("reason", ["PushFailed", "NoAgent"])
async def test_when_the_survivor_cant_be_saved_the_newest_valid_image_is_used(lab: SpotLab, reason: str) -> None:
    await lab.apply_manifests(checkpoints={"checkpointInterval": "2s"})
    await lab.until_running()
    await lab.until_saved()
    lab.agents.failure = reason, "no agent is on that node"
    await lab.cloud.preempt(lab.key(FIRST))
    back = await lab.until_attempt(0, 1)
    (recovery,) = back.status.recoveries
    assert recovery.source == "repository"
    assert recovery.image == back.status.last_checkpoint_image
    assert "no agent is on that node" in back.said("Checkpointed")


async def test_without_any_image_the_replica_begins_anew_and_that_is_a_warning(lab: SpotLab) -> None:
    await lab.apply_manifests()
    await lab.until_running()
    lab.agents.failure = "PushFailed", "the registry is away"
    await lab.cloud.preempt(lab.key(FIRST))
    back = await lab.until_attempt(0, 1)
    assert back.replica(0).restored_from is None
    assert back.reason("Recovering") == "RestartedFromBeginning"
    assert "begins anew" in await lab.event("RestartedFromBeginning")


async def test_while_the_registry_is_away_what_status_knows_is_used(lab: SpotLab) -> None:
    await lab.apply_manifests(checkpoints={"checkpointInterval": "2s"})
    await lab.until_running()
    await lab.until_saved()
    lab.registry.problem = "gcr.io does not answer"
    lab.agents.failure = "PushFailed", lab.registry.problem
    await lab.cloud.preempt(lab.key(FIRST))
    back = await lab.until_attempt(0, 1)
    assert back.replica(0).restored_from == back.status.last_checkpoint_image


async def test_a_survivor_that_succeeds_meanwhile_calls_the_replacement_and_the_restore_off(
    lab: SpotLab, engine: Engine
) -> None:
    await lab.apply_manifests()
    await lab.until_running()
    lab.agents.holds = lab.cloud.holds_new = True
    await lab.cloud.preempt(lab.key(FIRST))
    await lab.open_backups(1)
    await lab.machines(lambda found: "my-training-job-r0-1-m0" in found)
    await lab.end_pod("my-training-job-r1", engine.end_pod)
    await lab.until_phase("Succeeded")
    await lab.open_backups(0)
    await lab.machines(lambda found: not found)
    assert len(lab.cloud.launched) == 2


async def test_a_pod_that_took_the_new_gpus_first_is_named_and_no_second_machine_is_ordered(
    lab: SpotLab, engine: Engine
) -> None:
    lab.cloud.holds_new = True
    await lab.apply_manifests(replicas=1)
    await lab.machines(lambda found: list(found) == [FIRST])
    node = await lab.cloud.add_node(lab.key(FIRST))
    body = pod("thief", lab.namespace, requests={GPU: "1"})
    body["spec"]["nodeName"] = node
    thief = await lab.cluster.create(PODS, body, namespace=lab.namespace)
    await lab.cloud.bring_up(lab.key(FIRST))
    said = await lab.until_says("was taken by pod")
    assert f"its {GPU} was taken by pod {lab.namespace}/thief" in said.message
    assert said.reason("Provisioning") == "RoomTaken"
    assert list(await lab.machines(bool)) == [FIRST]
    await engine.end_pod(thief.metadata.key)
    await lab.until_running(1)
    assert list(await lab.machines(bool)) == [FIRST]


def that_asks_for(namespace: str, **limits: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "t", "image": "r.invalid/t:1", "resources": {"limits": limits}}
    pod_spec = {"nodeSelector": {POOL: namespace}, "containers": [container]}
    return {"spec": {"template": {"spec": pod_spec}}}


async def test_a_machine_that_is_too_small_says_what_the_replica_asks_for(lab: SpotLab) -> None:
    await lab.create_template()
    await lab.submit(replicas=1, jobTemplate=that_asks_for(lab.namespace, memory="64Gi"))
    said = await lab.until_says("name a larger machine in the SpotInstanceVM")
    assert "its node has 15Gi of the 64.25Gi of memory that the replica asks for" in said.message


async def test_no_machine_is_ordered_that_has_too_few_gpus_and_the_job_goes_on_once_that_is_corrected(
    lab: SpotLab,
) -> None:
    await lab.create_template()
    await lab.submit(replicas=1, jobTemplate=that_asks_for(lab.namespace, **{GPU: 2}))
    said = await lab.until_says("those of SpotInstanceVM my-training-vm have 1 GPU, and a replica asks for 2")
    assert said.reason("Provisioning") == "TooFewGPUs"
    assert not await lab.machines(lambda found: True)
    key = lab.key("my-training-vm")
    await lab.cluster.patch(SPOT_INSTANCE_VMS, key, {"spec": {"gpu": {"count": 2}}})
    await lab.machines(lambda found: list(found) == [FIRST])


async def test_a_machine_that_does_not_join_is_given_back_before_the_next_one_is_ordered(lab: SpotLab) -> None:
    lab.cloud.holds_new = True
    await lab.apply_manifests(replicas=1)
    await lab.machines(lambda found: list(found) == [FIRST])
    failed = condition("Joined", "False", "Login", "nobody answers on port 22")
    await lab.cloud.say(lab.key(FIRST), phase="End", step="Deleting", conditions=[failed])
    said = await lab.until_says("nobody answers on port 22")
    assert said.reason("Provisioning") == "Login"
    assert list(await lab.machines(bool)) == [FIRST]
    await lab.cloud.say(lab.key(FIRST), step="Gone")
    await lab.machines(lambda found: list(found) == ["my-training-job-r0-0-m1"])


async def test_a_machine_preempted_while_it_boots_costs_no_attempt(lab: SpotLab) -> None:
    lab.cloud.holds_new = True
    await lab.apply_manifests(replicas=1)
    await lab.machines(lambda found: list(found) == [FIRST])
    await lab.cloud.preempt(lab.key(FIRST))
    lab.cloud.holds_new = False
    await lab.machines(lambda found: list(found) == ["my-training-job-r0-0-m1"])
    await lab.cloud.bring_up(lab.key("my-training-job-r0-0-m1"))
    running = await lab.until_running(1)
    assert (running.replica(0).attempt, running.replica(0).machine_try) == (0, 2)
    assert running.status.restarts is None


async def test_a_credential_that_is_missing_is_said_and_the_job_goes_on_when_it_is_there(lab: SpotLab) -> None:
    lab.cloud.holds_new = True
    await lab.apply_manifests(replicas=1)
    await lab.machines(lambda found: list(found) == [FIRST])
    missing = condition(
        "Launched", "False", "SecretMissing", "Secret default/gcp-credentials does not exist: create it"
    )
    await lab.cloud.say(lab.key(FIRST), phase="Launch", conditions=[missing])
    said = await lab.until_says("create it")
    assert (said.holds("Provisioning"), said.reason("Provisioning")) == (False, "SecretMissing")
    await lab.cloud.bring_up(lab.key(FIRST))
    await lab.until_running(1)


async def test_a_template_that_comes_later_is_waited_for(lab: SpotLab) -> None:
    await lab.submit(replicas=1)
    said = await lab.until_says("there is no SpotInstanceVM my-training-vm: create it")
    assert said.reason("Provisioning") == "TemplateMissing"
    await lab.create_template()
    await lab.until_running(1)


async def test_a_template_that_goes_while_replicas_run_is_missed_only_at_the_next_need(lab: SpotLab) -> None:
    await lab.apply_manifests(replicas=1)
    await lab.until_running(1)
    await lab.cluster.delete(SPOT_INSTANCE_VMS, lab.key("my-training-vm"))
    await gone(lab.cluster, SPOT_INSTANCE_VMS, lab.key("my-training-vm"))
    assert (await lab.get()).status.active_replicas == 1
    await lab.cloud.preempt(lab.key(FIRST))
    await lab.until_says("there is no SpotInstanceVM my-training-vm: create it")
    await lab.create_template()
    await lab.until_attempt(0, 1)


async def test_gpus_that_become_free_while_no_machine_is_to_be_had_are_used(lab: SpotLab, pool: Pool) -> None:
    await lab.submit(replicas=1)
    await lab.until_says("there is no SpotInstanceVM")
    node = await pool.add(resources={GPU: "1"})
    running = await lab.until_running(1)
    assert running.replica(0).node_name == node


async def test_what_belongs_to_somebody_else_is_left_alone_and_named(lab: SpotLab) -> None:
    container = {"name": "main", "image": "registry.invalid/main:1"}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    body = {"metadata": {"name": "my-training-job-r0"}, "spec": {"suspend": True, "template": template}}
    foreign = await lab.cluster.create(JOBS, body, namespace=lab.namespace)
    await lab.apply_manifests()
    said = await lab.until_says("Job my-training-job-r0 is there already")
    assert "give this job another name" in said.message
    await lab.until(lambda it: it.status.active_replicas == 1, "the other replica runs")
    assert (await lab.job("my-training-job-r0")).metadata.uid == foreign.metadata.uid
    await lab.cluster.delete(JOBS, foreign.metadata.key)
    await lab.cluster.patch(SPOT_INSTANCE_JOBS, lab.key(), {"metadata": {"annotations": {"touched": "yes"}}})
    await lab.until_running()


async def test_a_machine_that_somebody_else_ordered_is_never_adopted(lab: SpotLab) -> None:
    lab.cloud.holds_new = True
    body = {"metadata": {"name": FIRST}, "spec": {"vmRef": {"name": "vm"}}}
    foreign = await lab.cluster.create(PROVISIONED_INSTANCES, body, namespace=lab.namespace)
    await lab.apply_manifests(replicas=1)
    await lab.until_says(f"ProvisionedInstance {FIRST} is there already and was not ordered by this job: delete it")
    assert (await lab.machines(bool))[FIRST].metadata.uid == foreign.metadata.uid
    await lab.cluster.delete(PROVISIONED_INSTANCES, foreign.metadata.key)
    await lab.cluster.patch(SPOT_INSTANCE_JOBS, lab.key(), {"metadata": {"annotations": {"touched": "yes"}}})
    await lab.machines(lambda found: found and found[FIRST].metadata.uid != foreign.metadata.uid)


WHOLE = {"spec": {"containers": [{"name": "t", "image": "r.invalid/t:1"}]}}


@pytest.mark.parametrize(
    "broken",
    [
        {"spec": {"template": {"spec": {"containers": [{"name": "t", "resources": "many"}]}}}},
        {"spec": {"template": WHOLE, "podFailurePolicy": "never"}},
        {"spec": {"template": WHOLE, "podFailurePolicy": {"rules": ["FailJob"]}}},
        {"metadata": {"labels": "team"}, "spec": {"template": WHOLE}},
        {"spec": {"template": {"spec": {"nodeName": "gpu-7", **WHOLE["spec"]}}}},
    ],
)
async def test_a_template_that_no_job_can_be_made_of_fails_at_once(lab: SpotLab, broken: Any) -> None:
    await lab.create_template()
    await lab.submit(jobTemplate=broken)
    failed = await lab.until_phase("Failed")
    assert "spec.jobTemplate" in failed.message
    assert await lab.machines(lambda found: not found) == {}


async def test_a_job_that_has_ended_goes_after_its_time_to_live(lab: SpotLab, engine: Engine) -> None:
    await lab.apply_manifests(replicas=1, ttlSecondsAfterFinished=0)
    await lab.until_running(1)
    await lab.end_pod("my-training-job-r0", engine.end_pod)
    await lab.gone()
    await gone(lab.cluster, JOBS, lab.key("my-training-job-r0"))
    await lab.machines(lambda found: not found)


async def test_the_deadline_of_the_template_ends_the_job(lab: SpotLab) -> None:
    await lab.apply_manifests(replicas=1, job_spec={"activeDeadlineSeconds": 2})
    failed = await lab.until_phase("Failed")
    assert "longer than the 2 s of jobTemplate.spec.activeDeadlineSeconds" in failed.message
    await lab.machines(lambda found: not found)
