"""What it means when workers say nothing, on every engine: a hang, a lost node, or an operator that could not hear."""

import asyncio
from typing import Any

import pytest

from holdfast.api.core.objects import Pod
from holdfast.api.reports import ProgressReport
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import PODS
from holdfast.runtime.process import utc_now
from holdfast.trainingjob.decide import progress
from holdfast.trainingjob.reports.receiver import ReportReceiver
from tests.contract.engine import Engine
from tests.contract.kinds import JOBS
from tests.contract.pool import Pool
from tests.control_plane.waiting import eventually
from tests.trainingjob.controller.lab import TrainingJobLab
from tests.trainingjob.controller.operating import operating
from tests.trainingjob.controller.sidecars import Sidecars

# Long enough for a busy machine to keep a heart beating, and no longer.
IMPATIENT: dict[str, Any] = {"report_timeout_s": 3.0, "node_lease_timeout_s": 3.0}
WATCHED: dict[str, Any] = {"monitoring": {"enabled": True}, "hyperparameters": {"epochs": 10}}
# One worker to a machine.
LARGE = {"resources": {"requests": {"cpu": "10"}}}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "WRITE_EVERY_S", 0.0)


@pytest.fixture
def operator_options() -> dict[str, Any]:
    return IMPATIENT


async def spread(lab: TrainingJobLab, pool: Pool, sidecars: Sidecars, **spec: Any) -> tuple[Pod, Pod]:
    """Two workers on two of three machines, whose Leases are there."""
    for suffix in "abc":
        await sidecars.renew(await pool.add(suffix))
    await lab.submit(**{**WATCHED, **LARGE, **spec})
    first, second = await pool.running(2, job="bert-training")
    await lab.until_state("Running")
    assert first.spec.node_name != second.spec.node_name
    return first, second


def avoided(pod_spec: Any) -> list[list[str]]:
    """The nodes that each term of a Job's affinity rules out."""
    required = pod_spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = required["nodeSelectorTerms"]
    return [[value for rule in term["matchFields"] for value in rule["values"]] for term in terms]


@pytest.mark.usefixtures("office")
@pytest.mark.every_engine
async def test_a_worker_lost_with_its_node_is_replaced_before_kubernetes_notices(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars, engine: Engine
) -> None:
    lost, other = await spread(lab, pool, sidecars)
    dying, living = await sidecars.of(lost, other)
    node = lost.spec.node_name
    async with living.beating():
        await dying.report(ProgressReport(epoch=1, metrics={"loss": 0.5}, at=1.0))
        await engine.freeze_node(node)
        again = await lab.until_state("Running", attempt=1)
    assert again.status.restarts is not None
    assert (again.status.restarts.infrastructure, again.status.restarts.application) == (1, 0)
    assert f"worker 0 on {node} was lost: it has not reported for more than 3 s" in again.failure
    assert "its node has not renewed its Lease for 3 s" in again.failure
    # The old pod is still there: nobody has seen it end.
    left = await lab.cluster.get(PODS, lost.metadata.key)
    assert (left.metadata.uid, left.is_finished) == (lost.metadata.uid, False)
    replaced = await pool.running(2, job="bert-training-1")
    assert node not in {pod.spec.node_name for pod in replaced}
    job = await lab.job("bert-training-1")
    assert job.metadata.annotations["holdfast.dev/avoids"] == node
    # It may go on for a while, and is told that nothing of it counts.
    assert (await dying.report(ProgressReport(epoch=9, at=1.0)))[0] == 409
    assert (await lab.get()).status.current_epoch == 1


@pytest.mark.usefixtures("office")
async def test_a_silent_worker_whose_node_lives_is_left_alone(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars
) -> None:
    pods = await spread(lab, pool, sidecars)
    for sidecar in await sidecars.of(*pods):
        assert (await sidecar.report())[0] == 200
    nodes = {pod.spec.node_name for pod in pods}
    # Far longer than both limits together: its sidecars may have crashed, or a policy of the network keeps them away.
    for _ in range(24):
        await asyncio.gather(*(sidecars.renew(node) for node in nodes))
        await asyncio.sleep(0.5)
    seen = await lab.get()
    assert (seen.status.state, seen.status.restart_count) == ("Running", 0)


async def test_workers_are_told_of_another_operator_and_it_hears_them(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars, cluster: Cluster, namespace: str
) -> None:
    async with operating(cluster, namespace, office=ReportReceiver(now=utc_now)):
        await pool.add()
        await lab.submit(numWorkers=1, **WATCHED)
        await lab.until_state("Running")
        (sidecar,) = await sidecars.of(*await pool.running(1))
        assert (await sidecar.report(ProgressReport(epoch=1, at=1.0)))[0] == 200
        await lab.until(lambda job: job.status.current_epoch == 1, "is heard")
    first = await sidecars.place("bert")
    async with operating(cluster, namespace, office=ReportReceiver(now=utc_now)):
        await eventually(lambda: sidecars.place("bert"), lambda now: now != first, what="the new operator is told of")
        assert (await sidecar.report(ProgressReport(epoch=2, at=1.0)))[0] == 200
        seen = await lab.until(lambda job: job.status.current_epoch == 2, "is heard again")
    assert (seen.status.state, seen.status.restart_count) == ("Running", 0)


async def test_silence_counts_only_while_the_operator_could_hear(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars, office: ReportReceiver, engine: Engine
) -> None:
    pods = await spread(lab, pool, sidecars)
    for sidecar in await sidecars.of(*pods):
        await sidecar.report()
    for pod in pods:
        await engine.freeze_node(pod.spec.node_name)
    for _ in range(24):
        office.uptime.reset()
        await asyncio.sleep(0.5)
    assert (await lab.get()).status.restart_count == 0
    await lab.until(lambda job: job.status.restart_count == 1, "misses them once it can hear")


@pytest.mark.usefixtures("office")
async def test_a_training_that_does_not_get_on_is_started_anew(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars
) -> None:
    await pool.add()
    await lab.submit(numWorkers=1, progressDeadlineSeconds=2, hyperparameters={"epochs": 10})
    (pod,) = await pool.running(1)
    await lab.until_state("Running")
    (sidecar,) = await sidecars.of(pod)
    await sidecar.report(ProgressReport(epoch=4, at=1.0))
    async with sidecar.beating():
        again = await lab.until_state("Running", attempt=1)
    assert again.status.restarts is not None
    assert (again.status.restarts.hang, again.status.restarts.infrastructure) == (1, 0)
    assert again.failure.startswith("the workers live and no progress was reported for ")
    assert again.failure.endswith(", after epoch 4 (progressDeadlineSeconds is 2)")
    assert "no progress" in await lab.event("Restarting")


@pytest.mark.parametrize("operator_options", [{"report_timeout_s": 3600.0}])
@pytest.mark.usefixtures("office")
async def test_a_hang_is_found_whatever_else_is_looked_for(lab: TrainingJobLab, pool: Pool, sidecars: Sidecars) -> None:
    await pool.add()
    await lab.submit(numWorkers=1, progressDeadlineSeconds=2)
    (pod,) = await pool.running(1)
    await lab.until_state("Running")
    (sidecar,) = await sidecars.of(pod)
    async with sidecar.beating():
        await lab.until(lambda job: job.status.restart_count == 1, "starts anew")


@pytest.mark.usefixtures("office")
async def test_hangs_use_up_the_limit(lab: TrainingJobLab, pool: Pool, sidecars: Sidecars) -> None:
    await pool.add()
    await lab.submit(numWorkers=1, progressDeadlineSeconds=1, failurePolicy={"backoffLimit": 0})
    (sidecar,) = await sidecars.of(*await pool.running(1))
    async with sidecar.beating():
        failed = await lab.until_state("Failed")
    assert failed.reason("Failed") == "BackoffLimitExceeded"
    assert "no progress was reported" in failed.failure


@pytest.mark.usefixtures("office")
async def test_a_training_that_gets_on_is_not_taken_for_hung(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars
) -> None:
    await pool.add()
    await lab.submit(numWorkers=1, progressDeadlineSeconds=3)
    (sidecar,) = await sidecars.of(*await pool.running(1))
    await lab.until_state("Running")
    for step in range(1, 17):
        assert (await sidecar.report(ProgressReport(epoch=1, step=step, at=1.0)))[0] == 200
        await asyncio.sleep(0.5)
    assert (await lab.get()).status.restart_count == 0


@pytest.mark.usefixtures("office")
async def test_lost_nodes_are_avoided_beside_what_the_user_asks_for(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars, engine: Engine
) -> None:
    rule = {"key": "kubernetes.io/hostname", "operator": "Exists"}
    terms = [{"matchExpressions": [rule]}, {"matchExpressions": [{**rule, "key": "kubernetes.io/os"}]}]
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    lost, other = await spread(lab, pool, sidecars, scheduling={"affinity": {"nodeAffinity": wanted}})
    dying, living = await sidecars.of(lost, other)
    async with living.beating():
        await dying.report()
        await engine.freeze_node(lost.spec.node_name)
        await lab.until_state("Running", attempt=1)
    made = await engine.cluster.get(JOBS, lab.key("bert-training-1"))
    assert avoided(made.spec["template"]["spec"]) == [[lost.spec.node_name], [lost.spec.node_name]]
