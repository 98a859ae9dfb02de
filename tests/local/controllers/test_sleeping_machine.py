"""A machine that was asleep, a laptop say, is taken for lost and comes back by itself."""

import asyncio
from contextlib import suppress

from holdfast.api.core.objects import find_condition
from holdfast.local.controllers.nodes import readiness
from holdfast.local.kubelet.node import NodeAgent
from tests.local.controllers.bench import a_cluster, now
from tests.runtime.virtual import virtual

ROOM = {"cpu": "4", "memory": "8Gi", "pods": "10"}


@virtual
async def test_a_machine_that_wakes_up_is_ready_again() -> None:
    async with a_cluster() as bench:
        agent = NodeAgent(bench.cluster, "laptop", ROOM, now)
        await agent.register()
        awake = asyncio.create_task(agent.run())
        await asyncio.sleep(300)
        assert readiness(await bench.node("laptop", bool)) == "True", "it gives signs of life"
        awake.cancel()
        with suppress(asyncio.CancelledError):
            await awake
        lost = await bench.node("laptop", lambda node: node.spec.taints)
        assert readiness(lost) == "Unknown"
        awake = asyncio.create_task(agent.run())
        back = await bench.node("laptop", lambda node: not node.spec.taints)
        assert readiness(back) == "True"
        ready = find_condition(back.status.conditions, "Ready")
        assert ready is not None
        assert ready.reason == "RunnerReady"
        await bench.run_pod("one")
        await bench.running(1)
        awake.cancel()
        with suppress(asyncio.CancelledError):
            await awake
