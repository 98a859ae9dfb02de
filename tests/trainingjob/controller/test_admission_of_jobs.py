"""All workers of a TrainingJob fit, or none starts: on every engine."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import JOBS, PODS, PRIORITY_CLASSES, TRAINING_JOBS
from tests.contract.pool import Pool
from tests.contract.waiting import until
from tests.trainingjob.controller.lab import TrainingJobLab

pytestmark = pytest.mark.usefixtures("operator")

GPU = "nvidia.com/gpu"
QUEUE = "kueue.x-k8s.io/queue-name"


@pytest.fixture
async def urgent(cluster: Cluster, namespace: str) -> AsyncIterator[str]:
    """A PriorityClass of the test's own."""
    name = f"urgent-{namespace}"
    await cluster.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": 1000})
    yield name
    await cluster.delete(PRIORITY_CLASSES, Key("", name))


async def test_a_gang_that_does_not_fit_waits_as_a_whole_and_starts_when_it_does(
    lab: TrainingJobLab, pool: Pool
) -> None:
    await pool.add("a", resources={GPU: "2"})
    await lab.submit(gpusPerWorker=2)
    waiting = await lab.until(lambda job: "needs 2 × 2 GPUs; 1 node has 2 free" in job.message, "says what is missing")
    assert waiting.status.state == "Pending"
    assert "Waiting" in await lab.event_reasons()
    assert (await lab.job("bert-training")).spec.suspend
    assert (await lab.cluster.list(PODS, namespace=lab.namespace)).items == ()
    await pool.add("b", resources={GPU: "2"})
    await pool.running(2)
    running = await lab.until_state("Running")
    assert running.status.resources
    assert (running.status.resources.gpus, running.status.resources.workers) == (4, 2)
    assert running.status.restart_count == 0


async def test_a_nodes_room_is_given_once(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add("a", resources={GPU: "4"})
    for name in ("a", "b", "c"):
        await lab.submit(name, numWorkers=1, gpusPerWorker=2)
    await pool.running(2)
    await lab.until_state("Running", "a")
    await lab.until_state("Running", "b")
    waiting = await lab.until(lambda job: "needs 1 × 2 GPUs; no node has 2 free" in job.message, "waits", "c")
    assert waiting.status.state == "Pending"
    await pool.end(*await pool.running(1, job="a-training"))
    await lab.until_state("Completed", "a")
    await lab.until_state("Running", "c")


async def test_the_one_of_higher_priority_is_next(lab: TrainingJobLab, pool: Pool, urgent: str) -> None:
    await pool.add("a", resources={GPU: "2"})
    await lab.submit("first", numWorkers=1, gpusPerWorker=2)
    await lab.until_state("Running", "first")
    await lab.submit("second", numWorkers=1, gpusPerWorker=2)
    await lab.until_state("Pending", "second")
    await lab.submit("third", numWorkers=1, gpusPerWorker=2, scheduling={"priority": urgent})
    await lab.until_state("Pending", "third")
    await pool.end(*await pool.running(1, job="first-training"))
    await lab.until_state("Running", "third")
    assert (await lab.get("second")).status.state == "Pending"


@pytest.mark.every_engine
async def test_a_priority_class_that_is_missing_is_named_and_then_found(
    lab: TrainingJobLab, pool: Pool, cluster: Cluster
) -> None:
    await pool.add()
    name = f"later-{lab.namespace}"
    await lab.submit(scheduling={"priority": name})
    await lab.until(lambda job: f"PriorityClass {name} does not exist" in job.message, "names it")
    await cluster.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": 10})
    try:
        await lab.until_state("Running")
    finally:
        await cluster.delete(PRIORITY_CLASSES, Key("", name))


async def test_what_no_node_could_ever_give_is_said_at_once(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add("a", resources={GPU: "8"})
    await lab.submit(gpusPerWorker=16)
    await lab.until(lambda job: "the largest node has 8" in job.message, "says so")
    await pool.add("b", resources={GPU: "32"})
    await lab.until_state("Running")


async def test_a_selector_that_matches_nothing_is_named(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(scheduling={"nodeSelector": {"gpu": "a100"}})
    await lab.until(lambda job: "gpu=a100" in job.message, "names it")
    await pool.add("b", labels={"gpu": "a100"})
    await lab.until_state("Running")


async def test_a_restarting_job_keeps_its_place(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add("a", resources={GPU: "4"})
    await lab.submit("old", gpusPerWorker=2)
    lost, _ = await pool.running(2, job="old-training")
    await lab.until_state("Running", "old")
    await lab.submit("young", numWorkers=1, gpusPerWorker=2)
    await lab.until_state("Pending", "young")
    await pool.end(lost, exit_code=9)
    await pool.running(2, job="old-training-1")
    assert (await lab.until_state("Running", "old", attempt=1)).status.restart_count == 1
    assert (await lab.get("young")).status.state == "Pending"


@pytest.mark.every_engine
async def test_a_job_for_kueue_is_left_to_kueue(lab: TrainingJobLab, pool: Pool, cluster: Cluster) -> None:
    await pool.add()
    await lab.submit(labels={QUEUE: "team-a"})
    queued = await lab.until_state("Pending")
    assert "Kueue" in queued.message
    job = await lab.job("bert-training")
    assert (job.spec.suspend, job.metadata.labels[QUEUE]) == (True, "team-a")
    # What Kueue does when its quota allows.
    await let_go(cluster, job.metadata.key)
    workers = await pool.running(2, job="bert-training")
    assert all(QUEUE not in pod.metadata.labels for pod in workers)
    await lab.until_state("Running")
    await pool.end(workers[0], exit_code=9)
    again = await until(cluster, JOBS, lab.key("bert-training-1"), bool, "queues again")
    assert (again.spec.suspend, again.metadata.labels[QUEUE]) == (True, "team-a")
    await let_go(cluster, again.metadata.key)
    await pool.end(*await pool.running(2, job="bert-training-1"))
    await lab.until_state("Completed")


@pytest.mark.every_engine
async def test_a_job_that_kueue_takes_back_waits_and_is_no_failure(
    lab: TrainingJobLab, pool: Pool, cluster: Cluster
) -> None:
    await pool.add()
    await lab.submit(labels={QUEUE: "team-a"})
    job = await lab.job("bert-training")
    await let_go(cluster, job.metadata.key)
    await pool.running(2, job="bert-training")
    await lab.until_state("Running")
    await cluster.patch(JOBS, job.metadata.key, {"spec": {"suspend": True}})
    await pool.running(0)
    taken_back = await lab.until_state("Pending")
    assert taken_back.status.restart_count == 0
    await let_go(cluster, job.metadata.key)
    await pool.running(2, job="bert-training")
    await lab.until_state("Running")


async def test_suspended_a_job_for_kueue_leaves_the_queue(lab: TrainingJobLab, pool: Pool, cluster: Cluster) -> None:
    await pool.add()
    await lab.submit(labels={QUEUE: "team-a"})
    job = await lab.job("bert-training")
    await lab.patch(suspend=True)
    await lab.until_state("Suspended")
    await lab.patch(suspend=False)
    again = await until(
        cluster, JOBS, job.metadata.key, lambda seen: seen.metadata.uid != job.metadata.uid, "queues again"
    )
    assert again.spec.suspend


async def let_go(cluster: Cluster, key: Key) -> None:
    await cluster.patch(JOBS, key, {"spec": {"suspend": False}})


async def test_scale_changes_what_has_to_fit(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add("a", resources={GPU: "2"})
    await lab.submit(gpusPerWorker=2)
    await lab.until_state("Pending")
    await lab.patch(numWorkers=1)
    await pool.running(1)
    running = await lab.until_state("Running")
    assert running.status.restart_count == 0
    assert running.workers.desired == 1


class TestWithoutMuchPatience:
    """A gang that is admitted and does not get all its nodes."""

    @pytest.fixture
    def operator_options(self) -> dict[str, Any]:
        return {"bind_timeout_s": 2.0}

    async def test_it_makes_room_again_and_says_why(self, lab: TrainingJobLab, pool: Pool, cluster: Cluster) -> None:
        await pool.add("a")
        # Nobody but the scheduler looks at who wants to be near whom.
        near = {
            "labelSelector": {"matchLabels": {"app": f"cache-{lab.namespace}"}},
            "topologyKey": "kubernetes.io/hostname",
        }
        wish = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
        await lab.submit(scheduling={"affinity": wish})
        given_up = await lab.until(lambda job: job.status.next_retry_time, "makes room again")
        assert given_up.status.state == "Pending"
        assert "not all workers found a node within 2s" in given_up.message
        assert "affinity" in given_up.message
        held = await until(cluster, JOBS, lab.key("bert-training"), lambda job: job.spec.suspend, "is held back")
        assert held.metadata.name == "bert-training"
        await until(cluster, JOBS, lab.key("bert-training"), lambda job: not job.spec.suspend, "is tried again")
        assert (await cluster.get(TRAINING_JOBS, lab.key("bert"))).status
