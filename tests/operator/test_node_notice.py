"""A preemption notice with the rights that an agent has: on the real API server, within its policies."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from holdfast.api.meta import Key
from holdfast.cluster.kubernetes.client import KubernetesCluster, connect
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.cluster.resources import NODES
from holdfast.node.notice.watch import watching_notices
from holdfast.pods.failure import has_preemption_notice
from holdfast.runtime.process import utc_now
from tests.control_plane import logins
from tests.control_plane.nodes import Nodes
from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually
from tests.node.notice.clouds import ComputeEngineDouble, serving
from tests.operator.deployed import AGENTS, NodeAgentLogin, agent_on, deployed

ACCOUNT = f"system:serviceaccount:{AGENTS}:{AGENTS}"
# Taints of others, before and after which ours is put.
FOREIGN = [{"key": "a", "effect": "NoSchedule"}, {"key": "z", "effect": "NoExecute", "value": "v"}]


@pytest.fixture(scope="module")
def agents_plane(plane: ControlPlane) -> Iterator[ControlPlane]:
    with deployed(plane, "operator", "node") as found:
        yield found


@pytest.fixture
async def agent(agents_plane: ControlPlane) -> AsyncIterator[NodeAgentLogin]:
    nodes = Nodes(agents_plane.api)
    (name,) = await nodes.add(1, prefix="noticed")
    yield await agent_on(agents_plane, name)
    await nodes.remove()


@pytest.fixture
async def cluster(
    agents_plane: ControlPlane, agent: NodeAgentLogin, tmp_path: Path
) -> AsyncIterator[KubernetesCluster]:
    plane = agents_plane
    kubeconfig = logins.with_token(tmp_path / "agent.kubeconfig", plane.url, plane.ca_file, agent.token)
    cluster = connect(load_config(str(kubeconfig)), rng=Random(0), now=utc_now)
    yield cluster
    await cluster.close()


async def test_a_notice_and_its_withdrawal_are_each_two_writes_to_the_node_and_one_event(
    agents_plane: ControlPlane, agent: NodeAgentLogin, cluster: KubernetesCluster
) -> None:
    path = f"/api/v1/nodes/{agent.node}"
    node = await agents_plane.api.request("GET", path)
    await agents_plane.api.request("PUT", path, {**node, "spec": {**node["spec"], "taints": FOREIGN}})
    double, since = ComputeEngineDouble(), agents_plane.audit_position()

    async def writes() -> list[tuple[str, str]]:
        made = [each for each in agents_plane.audit(since, user=ACCOUNT) if each.is_write and each.answer.code < 400]
        return sorted((each.verb, f"{each.target.resource}/{each.target.subresource}".rstrip("/")) for each in made)

    one = [("create", "events"), ("patch", "nodes"), ("patch", "nodes/status")]
    async with (
        serving(double) as address,
        watching_notices(cluster, agent.node, registry=CollectorRegistry(), now=utc_now, address=address),
    ):
        double.preempt(datetime.now(UTC))
        await eventually(writes, lambda seen: len(seen) >= 3, what="the writes of a notice")
        assert await writes() == one
        found = await cluster.get(NODES, Key("", agent.node))
        assert has_preemption_notice(found)
        assert [taint.key for taint in found.spec.taints] == ["a", "z", "holdfast.dev/preempted"]
        double.withdraw()
        await eventually(writes, lambda seen: len(seen) >= 6, what="the writes of its withdrawal")
        assert await writes() == sorted(one * 2)
        found = await cluster.get(NODES, Key("", agent.node))
        assert not has_preemption_notice(found)
        assert [taint.key for taint in found.spec.taints] == ["a", "z"]
