"""Two calls for one container are a second apart: the archive's name has seconds, and an older file is not cut."""

import asyncio
import time
from pathlib import Path

from aiohttp import web

from holdfast.api.meta import Key
from holdfast.cluster.resources import PODS
from holdfast.node.parts import AgentClocks, CallTimes
from tests.node.kubelets import saves
from tests.node.lab import AgentLab


def test_a_container_waits_for_the_rest_of_the_second_and_others_do_not() -> None:
    times = CallTimes()
    assert times.wait_s("p-1", "trainer", 100.0) == 0
    times.called("p-1", "trainer", 100.0)
    assert times.wait_s("p-1", "trainer", 100.25) == 0.75
    assert times.wait_s("p-1", "trainer", 101.0) == 0
    assert times.wait_s("p-1", "logger", 100.25) == times.wait_s("p-2", "trainer", 100.25) == 0


async def test_a_run_sleeps_until_its_container_may_be_frozen_again(lab: AgentLab) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    await lab.start()
    await lab.begin()
    pod, times = await lab.plain.get(PODS, Key(lab.namespace, "numbers")), CallTimes()
    times.called(pod.metadata.uid, "trainer", time.monotonic() + 3600)
    async with lab.agent(call_times=times, clocks=AgentClocks(sleep=sleep)):
        await lab.ended()
    assert [seconds for seconds in slept if seconds > 3000]


async def test_the_second_is_counted_from_the_kubelets_answer(lab: AgentLab) -> None:
    """It looks at the caller's token before it names the archive."""
    now_s, times = 1000.0, CallTimes()

    async def saves_late(request: web.Request, archive: Path) -> web.StreamResponse:
        nonlocal now_s
        now_s += 5.0
        return await saves(request, archive)

    await lab.start()
    await lab.begin()
    lab.kubelet.script = [saves_late]
    pod = await lab.plain.get(PODS, Key(lab.namespace, "numbers"))
    async with lab.agent(call_times=times, clocks=AgentClocks(clock=lambda: now_s)):
        await lab.ended()
    assert times.wait_s(pod.metadata.uid, "trainer", 1005.25) == 0.75
