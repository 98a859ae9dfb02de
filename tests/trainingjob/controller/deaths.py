"""Nodes that die, are cut off, stall or are overloaded, and the operator that is to tell which; in virtual time.

The operator, the API server and Kubernetes' controllers are real, nodes and sidecars are played: a kubelet renews its
node's Lease, a sidecar reports, and the node's kernel answers to connections, each as long as the test lets it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.errors import ClusterError, Forbidden, Unreachable
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import LEASES, NODES, PODS, TRAINING_JOBS
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator
from holdfast.runtime.reachability import Address, Answer
from holdfast.times import format_micro_time
from holdfast.trainingjob.controller import training_job_controller
from holdfast.trainingjob.decide.snapshot import TrainingJobTiming
from holdfast.trainingjob.node_leases import NODE_LEASES
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.reports.receiver import ReportReceiver
from tests.controllers.operating import DEFAULTS
from tests.local.controllers.bench import NAMESPACE, Bench, a_cluster, now
from tests.runtime.virtual import now_s
from tests.trainingjob.controller.lab import SEEN, SeenTrainingJob
from tests.trainingjob.reports.reports import batch

JOB = Key(NAMESPACE, "bert")
KUBELET_PORT = 10250
STEP_S = 0.25


class PlayedNode:
    """What still works at a node. `lease_every_s` and `report_every_s` of None: never again."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.address = f"10.0.0.{number}"
        self.answer: Answer = "accepted"
        self.lease_every_s: float | None = 10.0
        self.report_every_s: float | None = 5.0

    def lose_power(self) -> None:
        self.answer, self.lease_every_s, self.report_every_s = "unreachable", None, None

    def revive(self) -> None:
        self.answer, self.lease_every_s, self.report_every_s = "accepted", 10.0, 5.0


class StallingCluster:
    """The API server as nodes and operator reach it: requests fail while it is away, and its watches tell nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.is_away = False
        self.may_list_leases = True

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._cluster, name)
        if name == "watch" or not callable(method):
            return method

        async def asked(*args: Any, **more: Any) -> Any:
            if self.is_away:
                raise Unreachable("the API server is away")
            if name == "list" and args[0] is LEASES and not self.may_list_leases:
                raise Forbidden("leases may not be listed")
            return await method(*args, **more)

        return asked


class Deaths:
    """One job with a worker on each of the first nodes."""

    def __init__(self, bench: Bench, *, is_open: bool) -> None:
        self._bench = bench
        self._is_open = is_open
        self.plane = StallingCluster(bench.cluster)
        self.nodes: dict[str, PlayedNode] = {}
        self.asked: list[str] = []
        """Nodes that the operator has tried to reach."""
        self._receiver: ReportReceiver | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._operator: tuple[Operator, asyncio.Task[None]] | None = None

    # The nodes.

    async def add_node(self, name: str) -> None:
        node = self.nodes[name] = PlayedNode(name, len(self.nodes) + 1)
        await self._bench.add_node(name)
        # Of a node of the bench the Lease is played here.
        await self._bench.cut_off(name)
        self._bench.machines.broken.discard(name)
        where = {"addresses": [{"type": "InternalIP", "address": node.address}]}
        endpoint = {"daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}}}
        await self._bench.cluster.patch_status(NODES, Key("", name), {"status": {**where, **endpoint}})
        self._tasks += [asyncio.create_task(self._renew(node)), asyncio.create_task(self._report(node))]

    def lose_power(self, *names: str) -> None:
        for name in names:
            self.nodes[name].lose_power()
            self._bench.machines.broken.add(name)

    async def mend(self, name: str) -> None:
        """It was cut off, computes as ever, and learns what it is to do."""
        self.nodes[name].revive()
        self._bench.machines.broken.discard(name)
        for pod in await self.workers():
            if pod.spec.node_name == name:
                note = {"metadata": {"annotations": {"test.holdfast.dev/seen": "true"}}}
                await self._bench.cluster.patch(PODS, pod.metadata.key, note)

    async def _renew(self, node: PlayedNode) -> None:
        last_s = now_s() + 3.3 * len(self.nodes) - 10.0  # nodes do not renew at the same time
        while True:
            await asyncio.sleep(STEP_S)
            if node.lease_every_s is None or now_s() < last_s + node.lease_every_s:
                continue
            with suppress(ClusterError):  # the kubelet tries again soon
                renewed = {"spec": {"renewTime": format_micro_time(now())}}
                await self.plane.patch(LEASES, Key(NODE_LEASES, node.name), renewed)
                last_s = now_s()
                if not (await self.plane.get(NODES, Key("", node.name))).is_ready:
                    await self._bench.say_ready(node.name, "True")

    async def _report(self, node: PlayedNode) -> None:
        last_s = now_s()
        while True:
            await asyncio.sleep(STEP_S)
            if node.report_every_s is None or now_s() < last_s + node.report_every_s:
                continue
            last_s = now_s()
            for pod in await self.workers():
                if pod.spec.node_name == node.name and self._receiver is not None:
                    told = batch(index=_number(pod, names.INDEX_LABEL), attempt=_number(pod, names.ATTEMPT_LABEL))
                    if told.attempt == (await self.job()).status.restart_count:
                        self._receiver.inbox.put(JOB, told)

    async def _connect(self, address: Address) -> Answer:
        name = next(node.name for node in self.nodes.values() if node.address == address[0])
        self.asked.append(name)
        if not self._is_open or self.nodes[name].answer == "unreachable":
            await asyncio.sleep(4.0)
            return "unreachable"
        return self.nodes[name].answer

    # The operator.

    def start_operator(self) -> None:
        cluster: Any = self.plane
        self._receiver = ReportReceiver(now=now, clock=now_s)
        operator = Operator(cluster, identity="test", now=now, random=Random(3), metrics=Metrics())
        operator.add(
            training_job_controller(
                operator,
                cluster,
                defaults=DEFAULTS,
                now=now,
                timing=TrainingJobTiming(),
                receiver=self._receiver,
                connect=self._connect,
            )
        )
        self._operator = operator, asyncio.create_task(operator.run())

    async def stop_operator(self) -> None:
        if self._operator is not None:
            operator, task = self._operator
            operator.stop()
            await task
        self._operator = self._receiver = None

    def unready_reasons(self) -> list[str]:
        assert self._operator is not None
        return self._operator[0].unready_reasons()

    async def end(self) -> None:
        await self.stop_operator()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    # The job.

    async def submit(self, workers: int) -> None:
        spec = {
            "model": "cnn",
            "dataset": "mnist",
            "numWorkers": workers,
            "gpusPerWorker": 0,
            "monitoring": {"enabled": True},
            "resources": {"requests": {"cpu": "10"}},
            "podTemplate": {"terminationGracePeriodSeconds": 1},
        }
        await self._bench.cluster.create(
            TRAINING_JOBS, {"metadata": {"name": JOB.name}, "spec": spec}, namespace=NAMESPACE
        )
        await self._bench.until(SEEN, JOB, lambda job: job.status.state == "Running")

    async def job(self) -> SeenTrainingJob:
        return await self._bench.cluster.get(SEEN, JOB)

    async def workers(self) -> list[Pod]:
        pods = (await self._bench.cluster.list(PODS, namespace=NAMESPACE, labels=names.JOB_LABEL)).items
        return sorted((pod for pod in pods if not pod.is_finished), key=lambda pod: _number(pod, names.INDEX_LABEL))

    async def node_of(self, index: int) -> str:
        return (await self.workers())[index].spec.node_name

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def restarted_within(self, seconds: float) -> float | None:
        """After how many seconds the job was given another attempt; None when it was not."""
        began_s = now_s()
        while now_s() <= began_s + seconds:
            if (await self.job()).status.restart_count:
                return now_s() - began_s
            await asyncio.sleep(STEP_S)
        return None


def _number(pod: Pod, label: str) -> int:
    return int(pod.metadata.labels[label])


@asynccontextmanager
async def deaths(
    nodes: int = 4, workers: int = 2, *, is_open: bool = True, may_list_leases: bool = True
) -> AsyncIterator[Deaths]:
    """A job that has run for two minutes. Not `is_open`: no connection of the operator reaches any node."""
    async with a_cluster() as bench:
        it = Deaths(bench, is_open=is_open)
        it.plane.may_list_leases = may_list_leases
        try:
            for number in range(nodes):
                await it.add_node(f"gpu-{number}")
            it.start_operator()
            await it.submit(workers)
            await it.pass_time(120)
            yield it
        finally:
            await it.end()
