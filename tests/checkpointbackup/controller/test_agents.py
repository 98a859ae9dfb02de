"""The operator shows which nodes have a ready agent, from the pods that it watches anyway."""

from holdfast.cluster.protocol import DeleteOptions
from holdfast.cluster.resources import PODS
from holdfast.runtime.operator import Operator
from tests.checkpointbackup.controller.lab import BackupLab
from tests.contract.pool import Pool
from tests.control_plane.waiting import eventually


async def test_a_node_shows_whether_its_agent_is_ready_and_nothing_without_one(
    lab: BackupLab, pool: Pool, operator: Operator
) -> None:
    node, other = await pool.add("a"), await pool.add("b")

    async def shown() -> list[float | None]:
        registry = operator.registry
        return [registry.get_sample_value("holdfast_node_agent_ready", {"node": name}) for name in (node, other)]

    await lab.create_pod("other", node=node)
    assert await shown() == [None, None]
    pod = await lab.add_agent(node)
    await eventually(shown, lambda seen: seen == [1, None], what="the agent is shown as ready")
    # Its node falls silent, or its container ends.
    condition = {"type": "Ready", "status": "False"}
    await lab.cluster.patch_status(PODS, pod.metadata.key, {"status": {"conditions": [condition]}})
    await eventually(shown, lambda seen: seen == [0, None], what="the agent is shown as not ready")
    await lab.cluster.delete(PODS, pod.metadata.key, DeleteOptions(grace_period_s=0))
    await eventually(shown, lambda seen: seen == [None, None], what="no agent is shown")
