"""A TrainingJob's life as its controller leads it, on every engine."""

import asyncio
from typing import Any

import pytest

from holdfast.api.meta import is_true
from holdfast.cluster.errors import Invalid, NotFound
from holdfast.cluster.protocol import JSON, DeleteOptions, Resource
from holdfast.cluster.resources import CLAIMS, CONFIG_MAPS, JOBS, PODS, SERVICE_ACCOUNTS, SERVICES, TRAINING_JOBS
from holdfast.runtime.operator import Operator
from tests.contract.kinds import resource
from tests.contract.pool import Pool
from tests.contract.waiting import found, gone, listed, until
from tests.trainingjob.controller.lab import TrainingJobLab

pytestmark = pytest.mark.usefixtures("operator")

WHOLE_JOBS = resource("batch", "v1", "Job", "jobs")
WHOLE_PODS = resource("", "v1", "Pod", "pods")


@pytest.mark.every_engine
async def test_it_makes_the_workers_and_all_that_they_need(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    made = await lab.submit()
    await lab.until_state("Running")
    children: dict[str, Resource[Any]] = {
        "bert": SERVICE_ACCOUNTS,
        "bert-config": CONFIG_MAPS,
        "bert-headless": SERVICES,
        "bert-master": SERVICES,
    }
    for name, kind in children.items():
        child = await lab.cluster.get(kind, lab.key(name))
        owner = child.metadata.controller
        assert owner is not None
        assert owner.uid == made.metadata.uid
    job = await lab.job("bert-training")
    assert (job.spec.parallelism, job.spec.completions) == (2, 2)
    workers = await pool.running(2, job="bert-training")
    assert [pod.metadata.labels["training-job"] for pod in workers] == ["bert", "bert"]
    first = (await lab.cluster.get(WHOLE_PODS, workers[0].metadata.key)).spec
    host = f"{first['hostname']}.{first['subdomain']}.{lab.namespace}.svc.cluster.local"
    assert (await lab.cluster.get(SERVICES, lab.key("bert-master"))).spec.external_name == host


async def test_it_follows_the_workers_to_the_end(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await lab.until_state("Running")
    first, second = await pool.running(2)
    await pool.end(first)
    halfway = await lab.until(lambda job: job.workers.succeeded, "one ends")
    assert halfway.status.state == "Running"
    await pool.end(second)
    done = await lab.until_state("Completed")
    assert (done.workers.succeeded, done.workers.active) == (2, 0)
    assert is_true(done.status.conditions, "Succeeded")
    assert done.status.completion_time
    assert done.status.duration


@pytest.mark.every_engine
async def test_suspended_no_worker_runs_and_then_it_goes_on(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(suspend=True)
    suspended = await lab.until_state("Suspended")
    assert is_true(suspended.status.conditions, "Suspended")
    assert (await lab.cluster.list(PODS, namespace=lab.namespace)).items == ()
    await lab.patch(suspend=False)
    await lab.until_state("Running")
    await lab.patch(suspend=True)
    await lab.until(lambda job: job.status.state == "Suspended", "is suspended again")
    await pool.running(0)
    await lab.patch(suspend=False)
    await pool.end(*await pool.running(2))
    await lab.until_state("Completed")


@pytest.mark.every_engine
async def test_another_number_of_workers_is_a_new_attempt(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await lab.until_state("Running")
    await lab.patch(numWorkers=3)
    workers = await pool.running(3, job="bert-training-1")
    resized = await lab.until_state("Running")
    assert resized.status.restart_count == 1
    assert resized.workers.desired == 3
    await gone(lab.cluster, JOBS, lab.key("bert-training"))
    host = (await lab.cluster.get(SERVICES, lab.key("bert-master"))).spec.external_name
    assert host.startswith("bert-training-1-0.bert-headless.")
    await pool.end(*workers)
    done = await lab.until_state("Completed")
    assert done.status.restart_count == 1


@pytest.mark.every_engine
async def test_two_attempts_never_run_at_once(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await lab.until_state("Running")
    start = (await lab.cluster.list(PODS, namespace=lab.namespace)).resource_version
    for count in (1, 3):
        await lab.patch(numWorkers=count)
        await pool.running(count)
        await lab.until_state("Running")
    alive: dict[str, str] = {}
    async with lab.cluster.watch(PODS, resource_version=start, namespace=lab.namespace) as events:
        async with asyncio.timeout(30):
            async for event in events:
                pod = event.object
                if pod is None:
                    continue
                attempt = pod.metadata.labels["holdfast.dev/attempt"]
                if event.change == "DELETED" or pod.status.phase in ("Succeeded", "Failed"):
                    alive.pop(pod.metadata.uid, None)
                elif pod.spec.node_name:
                    alive[pod.metadata.uid] = attempt
                assert len(set(alive.values())) <= 1, alive
                if list(alive.values()).count("2") == 3:
                    return


async def test_a_spec_changed_before_the_first_start_is_what_runs_and_no_restart(
    lab: TrainingJobLab, pool: Pool
) -> None:
    await pool.add()
    await lab.submit(suspend=True)
    await lab.until_state("Suspended")
    await lab.patch(hyperparameters={"epochs": 9}, suspend=False)
    await pool.running(2, job="bert-training")
    job = await lab.cluster.get(WHOLE_JOBS, lab.key("bert-training"))
    variables = job.spec["template"]["spec"]["containers"][0]["env"]
    assert {"name": "EPOCHS", "value": "9"} in variables
    assert (await lab.until_state("Running")).status.restart_count == 0


async def test_a_spec_changed_while_suspended_is_a_new_attempt(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await lab.until_state("Running")
    await lab.patch(suspend=True)
    await lab.until(lambda job: job.message.startswith("spec.suspend is true"), "has stopped")
    await lab.patch(hyperparameters={"epochs": 9})
    assert (await lab.until(lambda job: job.status.restart_count == 1, "is counted")).status.state == "Suspended"
    await lab.patch(suspend=False)
    await pool.running(2, job="bert-training-1")
    assert (await lab.until_state("Running")).status.restart_count == 1


async def test_a_deadline_that_is_shortened_acts_at_once_and_over_all_attempts(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(failurePolicy={"activeDeadlineSeconds": 3600})
    await lab.until_state("Running")
    await lab.patch(numWorkers=1)
    await pool.running(1, job="bert-training-1")
    await lab.until_state("Running")
    await lab.patch(failurePolicy={"activeDeadlineSeconds": 1})
    failed = await lab.until_state("Failed")
    assert "activeDeadlineSeconds (1)" in failed.failure
    assert failed.reason("Failed") == "DeadlineExceeded"
    await pool.running(0)


@pytest.mark.every_engine
async def test_time_to_live_deletes_the_job_and_all_that_was_made_for_it(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(numWorkers=1)
    await pool.end(*await pool.running(1))
    await lab.until_state("Completed")
    await lab.patch(ttlSecondsAfterFinished=0)
    await gone(lab.cluster, TRAINING_JOBS, lab.key("bert"))
    kinds: tuple[Resource[Any], ...] = (JOBS, PODS, SERVICES)
    for kind in kinds:
        await listed(lab.cluster, kind, lab.namespace, lambda items: not items, f"no {kind} left")


@pytest.mark.every_engine
async def test_the_claim_for_checkpoints_outlives_the_job(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(checkpoint={"storage": {"size": "1Gi"}})
    claim = await until(lab.cluster, CLAIMS, lab.key("bert-checkpoints"), bool, "is made")
    await lab.cluster.delete(TRAINING_JOBS, lab.key("bert"))
    await listed(lab.cluster, JOBS, lab.namespace, lambda items: not items, "no Job left")
    kept = await lab.cluster.get(CLAIMS, claim.metadata.key)
    assert (kept.metadata.uid, kept.metadata.deletion_timestamp) == (claim.metadata.uid, "")


@pytest.mark.every_engine
async def test_a_claim_of_the_same_name_that_somebody_else_made_is_never_used(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await lab.cluster.create(CLAIMS, {"metadata": {"name": "bert-checkpoints"}, "spec": spec}, namespace=lab.namespace)
    await lab.submit(numWorkers=1, checkpoint={"storage": {"size": "1Gi"}})
    waiting = await lab.until(lambda job: "was not made for a job of this name" in job.message, "says so")
    assert waiting.status.state == "Pending"
    assert await found(lab.cluster, JOBS, lab.key("bert-training")) is None


async def test_the_claim_of_an_earlier_job_of_this_name_is_used_again(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    first = await lab.submit(numWorkers=1, checkpoint={"storage": {"size": "1Gi"}})
    claim = await until(lab.cluster, CLAIMS, lab.key("bert-checkpoints"), bool, "is made")
    await lab.job("bert-training")
    await lab.cluster.delete(TRAINING_JOBS, lab.key("bert"), DeleteOptions(uid=first.metadata.uid))
    await gone(lab.cluster, JOBS, lab.key("bert-training"))
    await lab.submit(numWorkers=1, checkpoint={"storage": {"size": "1Gi"}})
    await lab.job("bert-training")
    assert (await lab.cluster.get(CLAIMS, lab.key("bert-checkpoints"))).metadata.uid == claim.metadata.uid


@pytest.mark.every_engine
async def test_changes_that_would_alter_a_running_training_are_refused(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await lab.until_state("Running")
    with pytest.raises(Invalid, match="suspend"):
        await lab.patch(image="other:1")
    with pytest.raises(Invalid, match="create a new job"):
        await lab.patch(model="mlp")


@pytest.mark.parametrize("kind", [CONFIG_MAPS, SERVICES, JOBS], ids=lambda kind: kind.kind)
@pytest.mark.every_engine
async def test_a_name_that_somebody_else_has_is_never_adopted(
    lab: TrainingJobLab, pool: Pool, kind: Resource[Any]
) -> None:
    await pool.add()
    foreign: dict[str, JSON] = {
        "ConfigMap": {"metadata": {"name": "bert-config"}, "data": {"mine": "yes"}},
        "Service": {"metadata": {"name": "bert-master"}, "spec": {"ports": [{"port": 80}]}},
        "Job": {
            "metadata": {"name": "bert-training"},
            "spec": {
                "suspend": True,
                "template": {
                    "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "registry.invalid/c:1"}]}
                },
            },
        },
    }
    before = await lab.cluster.create(kind, foreign[kind.kind], namespace=lab.namespace)
    await lab.submit()
    taken = f"{kind.kind} {before.metadata.name} is there already"
    assert (await lab.until(lambda job: taken in job.message, "says so")).status.state == "Pending"
    assert taken in await lab.event("Waiting", containing=taken)
    after = await lab.cluster.get(kind, before.metadata.key)
    assert after.metadata.owner_references == ()
    assert after.metadata.resource_version == before.metadata.resource_version or kind is JOBS


@pytest.mark.every_engine
async def test_a_child_that_is_deleted_or_changed_is_mended(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await lab.until_state("Running")
    config = await lab.cluster.get(CONFIG_MAPS, lab.key("bert-config"))
    await lab.cluster.patch(CONFIG_MAPS, config.metadata.key, {"data": {"config.json": "{}", "more": "x"}})
    await until(lab.cluster, CONFIG_MAPS, config.metadata.key, lambda now: now.data == config.data, "is mended")
    await lab.cluster.delete(SERVICES, lab.key("bert-headless"))
    await until(lab.cluster, SERVICES, lab.key("bert-headless"), bool, "is made again")


async def test_a_child_that_lost_its_labels_is_found_and_labelled_again(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await lab.until_state("Running")
    service = await lab.cluster.get(SERVICES, lab.key("bert-master"))
    unlabelled = dict.fromkeys(service.metadata.labels)
    await lab.cluster.patch(SERVICES, service.metadata.key, {"metadata": {"labels": unlabelled}})
    mended = await until(
        lab.cluster,
        SERVICES,
        service.metadata.key,
        lambda now: now.metadata.labels == service.metadata.labels,
        "has its labels",
    )
    assert mended.metadata.uid == service.metadata.uid


async def test_a_new_job_of_an_old_name_waits_for_the_old_ones_children(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    first = await lab.submit()
    await lab.until_state("Running")
    await lab.cluster.delete(TRAINING_JOBS, lab.key("bert"), DeleteOptions(uid=first.metadata.uid))
    second = await lab.submit()
    await lab.until_state("Running")
    owner = (await lab.job("bert-training")).metadata.controller
    assert owner is not None
    assert owner.uid == second.metadata.uid


@pytest.mark.every_engine
async def test_deleted_it_leaves_nothing_behind(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await lab.until_state("Running")
    await lab.cluster.delete(TRAINING_JOBS, lab.key("bert"))
    kinds: tuple[Resource[Any], ...] = (JOBS, PODS, SERVICES)
    for kind in kinds:
        await listed(lab.cluster, kind, lab.namespace, lambda items: not items, f"no {kind} left")
    assert await found(lab.cluster, CONFIG_MAPS, lab.key("bert-config")) is None


async def test_an_ended_job_stays_ended_whatever_becomes_of_its_children(
    lab: TrainingJobLab, pool: Pool, operator: Operator
) -> None:
    await pool.add()
    await lab.submit()
    await pool.end(*await pool.running(2))
    done = await lab.until_state("Completed")
    await lab.cluster.delete(JOBS, lab.key("bert-training"))
    await gone(lab.cluster, JOBS, lab.key("bert-training"))
    # Another job that starts afterwards shows that the operator has had its turn.
    await lab.submit("other")
    await lab.until_state("Running", "other")
    assert await found(lab.cluster, JOBS, lab.key("bert-training")) is None
    assert (await lab.get()).status == done.status


# Kubernetes looks closer at a pod than our schema and the embedded engine do.
@pytest.mark.parametrize("opening", ["kubernetes"], indirect=True)
@pytest.mark.every_engine
async def test_what_the_cluster_refuses_for_good_fails_the_job_at_once(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nowhere"}}}])
    failed = await lab.until_state("Failed")
    assert "fieldPath" in failed.failure
    with pytest.raises(NotFound):
        await lab.cluster.get(JOBS, lab.key("bert-training"))


async def test_many_jobs_at_once_all_end(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    names = [f"job-{number}" for number in range(12)]
    await asyncio.gather(*(lab.submit(name, numWorkers=1) for name in names))
    await pool.end(*await pool.running(len(names)))
    for name in names:
        await lab.until_state("Completed", name)
    jobs = (await lab.cluster.list(JOBS, namespace=lab.namespace)).items
    assert sorted(job.metadata.name for job in jobs) == sorted(f"{name}-training" for name in names)


SHARED = {"storage": {"type": "s3", "s3Bucket": "runs", "prefix": "team/bert"}}


async def test_of_two_jobs_with_one_store_the_later_starts_when_the_other_has_ended(
    lab: TrainingJobLab, pool: Pool
) -> None:
    await pool.add()
    await lab.submit("first", numWorkers=1, checkpoint=SHARED)
    await lab.until_state("Running", "first")
    await lab.submit("second", numWorkers=1, checkpoint=SHARED)
    await lab.submit("third", numWorkers=1, checkpoint=SHARED)
    held = await lab.until(lambda job: "first to end" in job.message, "names the other job", "second")
    assert held.status.state == "Pending"
    assert "in the same place (s3://runs/team/bert)" in held.message
    assert "another checkpoint.storage.prefix" in held.message
    await pool.end(*await pool.running(1, job="first-training"))
    await lab.until_state("Running", "second")
    await lab.until(lambda job: "second to end" in job.message, "names the one that runs", "third")
    await lab.cluster.delete(TRAINING_JOBS, (await lab.get("second")).metadata.key)
    await lab.until_state("Running", "third")
