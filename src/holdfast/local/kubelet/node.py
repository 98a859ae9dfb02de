"""The Node object of the local kubelet and its heartbeat Lease."""

import asyncio
import contextlib
import os
import platform
from collections.abc import Mapping

import msgspec
import structlog
from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.cluster.errors import AlreadyExists, ClusterError, NotFound
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.cluster.resources import LEASES, NAMESPACES, NODES
from holdfast.local.kubelet.context import HOST_IP, Now
from holdfast.local.kubelet.devices import RESOURCE
from holdfast.times import format_micro_time, format_time

LEASE_NAMESPACE = "kube-node-lease"
HEARTBEAT_S = 10.0
LEASE_S = 40
MAX_PODS = 110

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


def capacity(gpus: int) -> dict[str, str]:
    """The capacity of this node; the caller counts the GPUs, since they may be simulated."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": str(len(os.sched_getaffinity(0))),
        "memory": f"{pages * page_bytes // 1024}Ki",
        "pods": str(MAX_PODS),
        RESOURCE: str(gpus),
    }


class NodeDetails(Struct, frozen=True, kw_only=True):
    """What a node says of itself beside what every node says."""

    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    provider_id: str = ""
    message: str = "holdfast runs pods as processes here"


PLAIN_NODE = NodeDetails()


class NodeAgent:
    def __init__(
        self,
        cluster: Cluster,
        name: str,
        resources: Mapping[str, str],
        now: Now,
        details: NodeDetails = PLAIN_NODE,
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._resources = dict(resources)
        self._now = now
        self._details = details

    async def register(self) -> None:
        """Create the Node and set it ready. An existing Node is taken over: the name belongs to this kubelet."""
        key = Key("", self._name)
        labels = {
            "kubernetes.io/hostname": self._name,
            "kubernetes.io/os": platform.system().lower(),
            "kubernetes.io/arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
            **self._details.labels,
        }
        metadata = {"labels": labels, "annotations": dict(self._details.annotations)}
        spec = {"providerID": self._details.provider_id} if self._details.provider_id else {}
        try:
            await self._cluster.create(NODES, {"metadata": {"name": self._name, **metadata}, "spec": spec})
        except AlreadyExists:
            await self._cluster.patch(NODES, key, {"metadata": metadata, "spec": spec})
        await self._cluster.patch_status(NODES, key, {"status": self._status()})
        await self._renew()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                await self._renew()
                await self._restore_ready()
            except ClusterError as error:
                log.warning("no sign of life given", node=self._name, reason=str(error))

    async def _restore_ready(self) -> None:
        """Set Ready again after a suspend, when the node controller marked the node Unknown: only the kubelet can."""
        key = Key("", self._name)
        conditions = (await self._cluster.get(NODES, key)).status.conditions
        if any((each.type, each.status) == ("Ready", "Unknown") for each in conditions):
            others = [each for each in conditions if each.type != "Ready"]
            merged = [*msgspec.to_builtins(others), *self._status()["conditions"]]
            await self._cluster.patch_status(NODES, key, {"status": {"conditions": merged}})

    async def _renew(self) -> None:
        renew_time = format_micro_time(self._now())
        spec = {"holderIdentity": self._name, "leaseDurationSeconds": LEASE_S, "renewTime": renew_time}
        try:
            await self._cluster.patch(LEASES, Key(LEASE_NAMESPACE, self._name), {"spec": spec})
        except NotFound:
            await self._create_lease(spec)

    async def _create_lease(self, spec: JSON) -> None:
        with contextlib.suppress(AlreadyExists):
            await self._cluster.create(NAMESPACES, {"metadata": {"name": LEASE_NAMESPACE}})
        node = (await self._cluster.get(NODES, Key("", self._name))).metadata
        # As a kubelet's: the Lease goes with the Node.
        owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
        body = {"metadata": {"name": self._name, "ownerReferences": [owner]}, "spec": spec}
        await self._cluster.create(LEASES, body, namespace=LEASE_NAMESPACE)

    def _status(self) -> JSON:
        now = format_time(self._now())
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "RunnerReady",
            "message": self._details.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        return {
            "capacity": self._resources,
            "allocatable": self._resources,
            "conditions": [ready],
            "addresses": [
                {"type": "InternalIP", "address": HOST_IP},
                {"type": "Hostname", "address": self._name},
            ],
        }
