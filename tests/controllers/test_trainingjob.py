"""A TrainingJob's life as its controller leads it, on every engine."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from holdfast.api.builtin import Job
from holdfast.api.meta import Key, Object
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.errors import Invalid, NotFound
from holdfast.cluster.protocol import JSON, Cluster, Resource
from holdfast.cluster.resources import CONFIG_MAPS, JOBS, PODS, SERVICES, TRAINING_JOBS
from holdfast.planning.conditions import holds
from holdfast.runtime.operator import Operator
from tests.contract.kinds import resource
from tests.contract.pods import POOL
from tests.contract.pool import Pool
from tests.contract.waiting import found, gone, listed, until
from tests.control_plane.waiting import eventually

pytestmark = pytest.mark.usefixtures("operator")


class Told(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What an event says."""

    message: str = ""


EVENTS = Resource(group="", version="v1", kind="Event", plural="events", model=Told)
WHOLE_JOBS = resource("batch", "v1", "Job", "jobs")


def manifest(name: str, namespace: str, **spec: Any) -> JSON:
    """Two CPU workers on the test's machines."""
    wishes = {"nodeSelector": {POOL: namespace}, **spec.pop("scheduling", {})}
    return {
        "metadata": {"name": name},
        "spec": {
            "model": "cnn",
            "dataset": "mnist",
            "numWorkers": 2,
            "gpusPerWorker": 0,
            "scheduling": wishes,
            "podTemplate": {"terminationGracePeriodSeconds": 1},
            **spec,
        },
    }


class Lab:
    """One namespace, seen through what a user can see."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def key(self, name: str) -> Key:
        return Key(self.namespace, name)

    async def submit(self, name: str = "bert", **spec: Any) -> TrainingJob:
        body = manifest(name, self.namespace, **spec)
        return await self.cluster.create(TRAINING_JOBS, body, namespace=self.namespace)

    async def until(self, holds: Callable[[TrainingJob], object], what: str, name: str = "bert") -> TrainingJob:
        return await until(self.cluster, TRAINING_JOBS, self.key(name), holds, what)

    async def until_state(self, state: str, name: str = "bert") -> TrainingJob:
        return await self.until(lambda job: job.status and job.status.state == state, f"is {state}", name)

    async def change(self, spec: Mapping[str, Any], name: str = "bert") -> None:
        await self.cluster.patch(TRAINING_JOBS, self.key(name), {"spec": spec})

    async def job(self, name: str = "bert-training") -> Job:
        return await until(self.cluster, JOBS, self.key(name), bool, "is there")

    async def told(self, reason: str, name: str = "bert") -> str:
        """The message of the event of that reason about the job."""
        about = f"involvedObject.name={name},reason={reason}"

        async def look() -> tuple[Told, ...]:
            return (await self.cluster.list(EVENTS, namespace=self.namespace, fields=about)).items

        return (await eventually(look, bool, what=f"event {reason} of {name}"))[0].message


@pytest.fixture
def lab(cluster: Cluster, namespace: str) -> Lab:
    return Lab(cluster, namespace)


async def test_it_makes_the_workers_and_all_that_they_need(lab: Lab, pool: Pool) -> None:
    await pool.add()
    made = await lab.submit()
    await lab.until_state("Running")
    children: dict[str, Resource[Any]] = {
        "bert-config": CONFIG_MAPS,
        "bert-headless": SERVICES,
        "bert-master": SERVICES,
    }
    for name, kind in children.items():
        child = await lab.cluster.get(kind, lab.key(name))
        owner = child.metadata.controller
        assert owner is not None
        assert owner.uid == made.metadata.uid
    job = await lab.job()
    assert (job.spec.parallelism, job.spec.completions) == (2, 2)
    workers = await pool.running(2, job="bert-training")
    assert [pod.metadata.labels["training-job"] for pod in workers] == ["bert", "bert"]
    selector = (await lab.cluster.get(SERVICES, lab.key("bert-master"))).spec.selector
    chosen = ",".join(f"{name}={value}" for name, value in selector.items())
    behind = (await lab.cluster.list(PODS, namespace=lab.namespace, labels=chosen)).items
    assert [pod.metadata.name for pod in behind] == [workers[0].metadata.name]


async def test_it_follows_the_workers_to_the_end(lab: Lab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await lab.until_state("Running")
    first, second = await pool.running(2)
    await pool.end(first)
    halfway = await lab.until(
        lambda job: job.status and job.status.workers and job.status.workers.succeeded, "one ends"
    )
    assert halfway.status
    assert halfway.status.state == "Running"
    await pool.end(second)
    done = await lab.until_state("Completed")
    assert done.status
    assert done.status.workers
    assert (done.status.workers.succeeded, done.status.workers.active) == (2, 0)
    assert holds(done.status.conditions, "Succeeded")
    assert done.status.completion_time
    assert done.status.duration


async def test_a_failed_worker_is_replaced_and_a_job_that_fails_too_often_says_why(lab: Lab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(failurePolicy={"backoffLimit": 0})
    (_, second) = await pool.running(2)
    await lab.until_state("Running")
    await pool.end(second, exit_code=7)
    failed = await lab.until_state("Failed")
    assert failed.status
    assert failed.status.failure_reason
    assert "worker 1" in failed.status.failure_reason
    assert "exited with code 7" in failed.status.failure_reason
    assert holds(failed.status.conditions, "Failed")
    assert "exited with code 7" in await lab.told("Failed")


async def test_a_worker_taken_away_with_its_machine_is_replaced_for_free(lab: Lab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(failurePolicy={"backoffLimit": 0})
    lost, kept = await pool.running(2)
    await lab.until_state("Running")
    await pool.end(lost, exit_code=137, disrupted=True)
    replaced = await pool.running(1, other_than=(lost.metadata.uid, kept.metadata.uid))
    await lab.until_state("Running")
    await pool.end(kept, *replaced)
    done = await lab.until_state("Completed")
    assert done.status
    assert not holds(done.status.conditions, "Failed")


@pytest.mark.parametrize(("exit_code", "state"), [(3, "Failed"), (143, "Running")])
async def test_with_exit_code_only_signals_are_tried_again(lab: Lab, pool: Pool, exit_code: int, state: str) -> None:
    await pool.add()
    await lab.submit(failurePolicy={"restartPolicy": "ExitCode"})
    first, second = await pool.running(2)
    await lab.until_state("Running")
    await pool.end(first, exit_code=exit_code)
    if state == "Running":
        await pool.running(1, other_than=(first.metadata.uid, second.metadata.uid))
    await lab.until_state(state)


async def test_a_job_that_fits_nowhere_says_so(lab: Lab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(gpusPerWorker=8)
    waiting = await lab.until(lambda job: job.status and "nvidia.com/gpu" in (job.status.message or ""), "says why")
    assert waiting.status
    assert waiting.status.state == "Initializing"
    assert (waiting.status.message or "").startswith("waiting for 2 of 2 workers: ")


async def test_suspended_no_worker_runs_and_then_it_goes_on(lab: Lab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(suspend=True)
    suspended = await lab.until_state("Suspended")
    assert suspended.status
    assert holds(suspended.status.conditions, "Suspended")
    assert (await lab.cluster.list(PODS, namespace=lab.namespace)).items == ()
    await lab.change({"suspend": False})
    await lab.until_state("Running")
    await lab.change({"suspend": True})
    await lab.until(lambda job: job.status and job.status.state == "Suspended", "is suspended again")
    await pool.running(0)
    await lab.change({"suspend": False})
    await pool.end(*await pool.running(2))
    await lab.until_state("Completed")


async def test_another_number_of_workers_is_a_new_attempt(lab: Lab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await lab.until_state("Running")
    await lab.change({"numWorkers": 3})
    workers = await pool.running(3, job="bert-training-1")
    resized = await lab.until_state("Running")
    assert resized.status
    assert resized.status.restart_count == 1
    assert resized.status.workers
    assert resized.status.workers.desired == 3
    await gone(lab.cluster, JOBS, lab.key("bert-training"))
    selector = (await lab.cluster.get(SERVICES, lab.key("bert-master"))).spec.selector
    assert selector["batch.kubernetes.io/job-name"] == "bert-training-1"
    await pool.end(*workers)
    done = await lab.until_state("Completed")
    assert done.status
    assert done.status.restart_count == 1


async def test_two_attempts_never_run_at_once(lab: Lab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await lab.until_state("Running")
    start = (await lab.cluster.list(PODS, namespace=lab.namespace)).resource_version
    for count in (1, 3):
        await lab.change({"numWorkers": count})
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


async def test_a_spec_changed_while_suspended_is_what_runs_next(lab: Lab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(suspend=True)
    await lab.until_state("Suspended")
    await lab.change({"hyperparameters": {"epochs": 9}})
    await until(lab.cluster, JOBS, lab.key("bert-training-1"), bool, "is made for the new spec")
    await lab.change({"suspend": False})
    await pool.running(2, job="bert-training-1")
    job = await lab.cluster.get(WHOLE_JOBS, lab.key("bert-training-1"))
    variables = job.spec["template"]["spec"]["containers"][0]["env"]
    assert {"name": "EPOCHS", "value": "9"} in variables


async def test_harmless_changes_act_on_the_running_job(lab: Lab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await lab.until_state("Running")
    await lab.change({"failurePolicy": {"backoffLimit": 9, "activeDeadlineSeconds": 3600}})
    changed = await until(
        lab.cluster, JOBS, lab.key("bert-training"), lambda job: job.spec.backoff_limit == 9, "follows the change"
    )
    assert changed.spec.active_deadline_seconds == 3600
    assert (await lab.until_state("Running")).status


async def test_changes_that_would_alter_a_running_training_are_refused(lab: Lab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await lab.until_state("Running")
    with pytest.raises(Invalid, match="suspend"):
        await lab.change({"image": "other:1"})
    with pytest.raises(Invalid, match="create a new job"):
        await lab.change({"model": "mlp"})


@pytest.mark.parametrize("kind", [CONFIG_MAPS, SERVICES, JOBS], ids=lambda kind: kind.kind)
async def test_a_name_that_somebody_else_has_is_never_adopted(lab: Lab, pool: Pool, kind: Resource[Any]) -> None:
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
    waiting = await lab.until_state("Pending")
    assert waiting.status
    assert f"{kind.kind} {before.metadata.name} is there already" in (waiting.status.message or "")
    assert "is there already" in await lab.told("Waiting")
    after = await lab.cluster.get(kind, before.metadata.key)
    assert after.metadata.owner_references == ()
    assert after.metadata.resource_version == before.metadata.resource_version or kind is JOBS


async def test_a_child_that_is_deleted_or_changed_is_mended(lab: Lab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await lab.until_state("Running")
    config = await lab.cluster.get(CONFIG_MAPS, lab.key("bert-config"))
    await lab.cluster.patch(CONFIG_MAPS, config.metadata.key, {"data": {"config.json": "{}", "more": "x"}})
    await until(lab.cluster, CONFIG_MAPS, config.metadata.key, lambda now: now.data == config.data, "is mended")
    await lab.cluster.delete(SERVICES, lab.key("bert-headless"))
    await until(lab.cluster, SERVICES, lab.key("bert-headless"), bool, "is made again")


async def test_a_child_that_lost_its_labels_is_found_and_labelled_again(lab: Lab, pool: Pool) -> None:
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


async def test_a_new_job_of_an_old_name_waits_for_the_old_ones_children(lab: Lab, pool: Pool) -> None:
    await pool.add()
    first = await lab.submit()
    await lab.until_state("Running")
    await lab.cluster.delete(TRAINING_JOBS, lab.key("bert"), uid=first.metadata.uid)
    second = await lab.submit()
    await lab.until_state("Running")
    owner = (await lab.job()).metadata.controller
    assert owner is not None
    assert owner.uid == second.metadata.uid


async def test_deleted_it_leaves_nothing_behind(lab: Lab, pool: Pool) -> None:
    await pool.add()
    await lab.submit()
    await lab.until_state("Running")
    await lab.cluster.delete(TRAINING_JOBS, lab.key("bert"))
    kinds: tuple[Resource[Any], ...] = (JOBS, PODS, SERVICES)
    for kind in kinds:
        await listed(lab.cluster, kind, lab.namespace, lambda items: not items, f"no {kind} left")
    assert await found(lab.cluster, CONFIG_MAPS, lab.key("bert-config")) is None


async def test_an_ended_job_stays_ended_whatever_becomes_of_its_children(
    lab: Lab, pool: Pool, operator: Operator
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
    assert (await lab.cluster.get(TRAINING_JOBS, lab.key("bert"))).status == done.status


# Kubernetes looks closer at a pod than our schema and the embedded engine do.
@pytest.mark.parametrize("opening", ["kubernetes"], indirect=True)
async def test_what_the_cluster_refuses_for_good_fails_the_job_at_once(lab: Lab, pool: Pool) -> None:
    await lab.submit(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nowhere"}}}])
    failed = await lab.until_state("Failed")
    assert failed.status
    assert "fieldPath" in (failed.status.failure_reason or "")
    with pytest.raises(NotFound):
        await lab.cluster.get(JOBS, lab.key("bert-training"))


async def test_fields_that_are_not_acted_on_are_named(lab: Lab, pool: Pool) -> None:
    await lab.submit(successPolicy={"targetAccuracy": 0.9}, checkpoint={"frequency": 2})
    told = await lab.told("NotActedOn")
    assert "spec.checkpoint" in told
    assert "spec.successPolicy" in told


async def test_many_jobs_at_once_all_end(lab: Lab, pool: Pool) -> None:
    await pool.add()
    names = [f"job-{number}" for number in range(12)]
    await asyncio.gather(*(lab.submit(name, numWorkers=1) for name in names))
    await pool.end(*await pool.running(len(names)))
    for name in names:
        await lab.until_state("Completed", name)
    jobs = (await lab.cluster.list(JOBS, namespace=lab.namespace)).items
    assert sorted(job.metadata.name for job in jobs) == sorted(f"{name}-training" for name in names)
