"""What is known of the nodes of silent workers: their Leases, and whether something answers there."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping

import structlog

from holdfast.api.core.objects import Node
from holdfast.pods.sidecar import PORT
from holdfast.runtime.reachability import Address
from holdfast.trainingjob.decide.node_death import (
    Evidence,
    Verdict,
    WorkerNode,
    is_late,
    judge,
    most_are_late,
    next_check_s,
    reach_of,
)
from holdfast.trainingjob.decide.snapshot import TrainingJobTiming
from holdfast.trainingjob.node_leases import NodeLeases
from holdfast.trainingjob.node_probes import LATE_ASK_AGAIN_S, NodeProbes

# Whether most nodes are late takes a look at all of them, and is not found anew for each of many that fall silent.
MOST_LATE_KEPT_S = 0.5

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class NodeWitnesses:
    """`nodes` are those of the cache, by name."""

    def __init__(
        self, leases: NodeLeases, probes: NodeProbes, timing: TrainingJobTiming, clock: Callable[[], float]
    ) -> None:
        self._leases = leases
        self._probes = probes
        self._timing = timing
        self._clock = clock
        self._said: dict[str, str] = {}
        self._most_late: tuple[float, bool] | None = None

    def follow(self, workers: Iterable[WorkerNode], nodes: Mapping[str, Node]) -> None:
        """These nodes have workers that report: know them before any falls silent."""
        for worker in workers:
            self._leases.follow()
            if self._clock() - worker.heard_s < self._timing.report_timeout_s:
                self._said.pop(worker.name, None)
                self._probes.know(_kubelet(worker, nodes))

    async def ask(self, suspected: Iterable[WorkerNode], nodes: Mapping[str, Node]) -> None:
        """Read the Leases that are late; the connections are tried meanwhile, and count at the next look."""
        late = [worker for worker in suspected if self._is_late(worker)]
        await asyncio.gather(*(self._leases.look(worker.name) for worker in late))
        for worker in late:
            if self._is_late(worker):
                addresses = (*_kubelet(worker, nodes), *_sidecars(worker))
                self._probes.ask(addresses, every_s=LATE_ASK_AGAIN_S)

    def judge(self, suspected: WorkerNode, nodes: Mapping[str, Node], fraction: float = 1.0) -> Verdict:
        evidence = self._evidence(suspected, nodes)
        verdict = judge(evidence, self._timing, fraction)
        is_silent = evidence.now_s - suspected.heard_s >= self._timing.report_timeout_s
        if is_silent and verdict.state != "dead" and self._said.get(suspected.name) != verdict.reason:
            self._said[suspected.name] = verdict.reason
            log.info("the workers of a node are silent and not given up", node=suspected.name, reason=verdict.reason)
        return verdict

    def next_check_in_s(self, worker: WorkerNode) -> float:
        lease = self._leases.by_node.get(worker.name)
        return next_check_s(worker.heard_s, lease, now_s=self._clock(), timing=self._timing)

    def _evidence(self, suspected: WorkerNode, nodes: Mapping[str, Node]) -> Evidence:
        now_s, heard_s, serving = self._clock(), suspected.heard_s, self._leases.serving
        kubelet = next(map(self._probes.of, _kubelet(suspected, nodes)), None)
        sidecars = map(self._probes.of, _sidecars(suspected))
        return Evidence(
            now_s=now_s,
            heard_s=heard_s,
            lease=self._leases.by_node.get(suspected.name),
            serving_since_s=serving.since_s if serving is not None else None,
            reach=reach_of(kubelet, sidecars, heard_s=heard_s, now_s=now_s),
            most_are_late=self._is_late(suspected) and self._most_are_late(now_s),
        )

    def _most_are_late(self, now_s: float) -> bool:
        if self._most_late is None or now_s - self._most_late[0] >= MOST_LATE_KEPT_S:
            self._most_late = now_s, most_are_late(self._leases.by_node.values(), now_s, self._timing)
        return self._most_late[1]

    def _is_late(self, worker: WorkerNode) -> bool:
        return is_late(self._leases.by_node.get(worker.name), self._clock())


def _kubelet(worker: WorkerNode, nodes: Mapping[str, Node]) -> Iterator[Address]:
    node = nodes.get(worker.name)
    if node is not None and node.internal_ip and (port := node.status.daemon_endpoints.kubelet_endpoint.port):
        yield node.internal_ip, port


def _sidecars(worker: WorkerNode) -> Iterator[Address]:
    for pod in worker.pods:
        if pod.status.pod_ip:
            yield pod.status.pod_ip, PORT
