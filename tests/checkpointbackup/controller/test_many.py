"""Many backups on many nodes, with holdfast's own agents and a real registry."""

import asyncio
from pathlib import Path

import pytest

from holdfast.api.core.objects import Pod
from holdfast.checkpointbackup.snapshot import status_of
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, PODS
from holdfast.runtime.operator import Operator
from tests.checkpointbackup.controller.agents import WriteCounts, agents_on
from tests.checkpointbackup.controller.lab import AGENT, BackupLab, backing_up
from tests.checkpoints.images.conftest import registry_server
from tests.checkpoints.images.registries import RunningRegistry
from tests.contract.pool import Pool
from tests.contract.waiting import listed
from tests.control_plane.waiting import eventually

__all__ = ["registry_server"]

NODES, BACKUPS = 50, 200
# Two by the operator, seven by the agent.
MOST_WRITES = 9


@pytest.mark.parametrize("opening", ["kubernetes"], indirect=True)
@pytest.mark.timeout(600)  # for a machine that does other things as well
async def test_200_backups_on_50_nodes_complete_with_nine_writes_each_and_none_when_settled(
    cluster: Cluster, namespace: str, pool: Pool, registry_server: RunningRegistry, tmp_path: Path
) -> None:
    counted = WriteCounts(cluster)
    lab = BackupLab(cluster, namespace)
    nodes = await asyncio.gather(*(pool.add(f"n{number}") for number in range(NODES)))
    names = [f"save-{number}" for number in range(BACKUPS)]
    await asyncio.gather(
        *(lab.create_pod(f"agent-{node}", node=node, labels=AGENT) for node in nodes),
        *(lab.create_pod(f"pod-{name}", node=nodes[number % NODES]) for number, name in enumerate(names)),
    )
    await listed(cluster, PODS, namespace, lambda pods: all(map(is_ready, pods)), "all pods are ready")
    repository = f"checkpoints/{namespace}"
    registry = {"url": registry_server.address.host, "repository": repository, "secretRef": {"name": "registry"}}
    async with agents_on(nodes, counted, registry_server, tmp_path) as kubelets:
        async with backing_up(counted, namespace, lab.requests) as operator:
            await asyncio.gather(*(lab.ask(name, pod=f"pod-{name}", registry=registry) for name in names))
            await until_all_complete(operator)
        assert sum(kubelet.calls for kubelet in kubelets) == BACKUPS
        assert max(counted.writes.values()) <= MOST_WRITES, counted.writes.most_common(3)
        await nothing_is_written_when_settled(counted, lab)
    async with registry_server.client() as client:
        assert len(await client.tags(repository)) == BACKUPS


def is_ready(pod: Pod) -> bool:
    return pod.condition("Ready") is not None


async def until_all_complete(operator: Operator) -> None:
    """As the operator sees them: the API server has enough to do."""
    store = operator.store(CHECKPOINT_BACKUPS)

    async def others() -> list[str]:
        found = [(it.metadata.name, status_of(it)) for it in store.list()]
        lost = [f"{name}: {status.message}" for name, status in found if status.phase == "Failed"]
        assert not lost, lost[0]
        return [name for name, status in found if status.phase != "Completed"] or ["unseen"] * (BACKUPS - len(found))

    await eventually(others, lambda left: not left, what="all are complete", within_s=500)


async def nothing_is_written_when_settled(counted: WriteCounts, lab: BackupLab) -> None:
    """Another operator looks at every backup."""
    before = dict(counted.writes)
    async with backing_up(counted, lab.namespace, lab.requests):
        await lab.ask("later", pod="nobody")
        await lab.until_says("there is no pod nobody", "later")  # everyone before it was looked at
    assert {name: count for name, count in counted.writes.items() if name != "later"} == before
