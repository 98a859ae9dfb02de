"""The contract's engine for a real API server: kwok's nodes, and the kubelet's part played by writing its status."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.errors import Expired
from holdfast.cluster.kubernetes.client import connect
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.cluster.protocol import JSON, Cluster, Resource
from holdfast.cluster.resources import PODS
from holdfast.times import format_time
from tests.control_plane.nodes import FAKE
from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually

from .engine import ROOMY
from .kinds import DEFINITIONS, NAMESPACES, NODES, SERVICE_ACCOUNTS, Document, resource
from .waiting import until

VOLUMES = resource("", "v1", "PersistentVolume", "persistentvolumes", namespaced=False)
PROBE_S = 0.5


@asynccontextmanager
async def kubernetes_engine(plane: ControlPlane) -> AsyncIterator["KubernetesEngine"]:
    cluster = connect(load_config(str(plane.kubeconfig)), rng=Random(0), now=lambda: datetime.now(UTC))
    try:
        yield KubernetesEngine(cluster)
    finally:
        await cluster.close()


class KubernetesEngine:
    """A control plane that runs already, and a client to it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def namespace(self) -> str:
        name = (await self.cluster.create(NAMESPACES, {"metadata": {"generateName": "contract-"}})).metadata.name
        # A pod is refused until the controllers have made the account that it runs as.
        await until(self.cluster, SERVICE_ACCOUNTS, Key(name, "default"), bool, "is made")
        return name

    async def add_node(
        self,
        name: str,
        *,
        resources: Mapping[str, str] = ROOMY,
        labels: Mapping[str, str] = {},
        taints: Sequence[Mapping[str, str]] = (),
    ) -> None:
        await self.cluster.create(
            NODES,
            {
                "metadata": {
                    "name": name,
                    "labels": {"kubernetes.io/hostname": name, FAKE: "true", **labels},
                },
                "spec": {"taints": list(taints)},
                "status": {"capacity": dict(resources), "allocatable": dict(resources)},
            },
        )
        # Every node begins with a taint that the controllers take off once kwok has made it ready.
        await until(self.cluster, NODES, Key("", name), is_open, "is open to pods")

    async def freeze_node(self, name: str) -> None:
        await self.cluster.patch(NODES, Key("", name), {"metadata": {"labels": {FAKE: None}}})

    async def break_node(self, name: str) -> None:
        await self.freeze_node(name)
        await self.cluster.patch_status(NODES, Key("", name), {"status": {"conditions": [ready("False", now())]}})

    async def add_storage(self, storage_class: str, size: str) -> None:
        spec = {
            "storageClassName": storage_class,
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": "/nowhere"},
        }
        made = await self.cluster.create(VOLUMES, {"metadata": {"name": storage_class}, "spec": spec})
        await until(
            self.cluster, VOLUMES, made.metadata.key, lambda it: it.status.get("phase") == "Available", "is available"
        )

    async def end_pod(self, pod: Key, *, exit_code: int = 0, ended: str = "", disrupted: bool = False) -> None:
        running = await self.cluster.get(PODS, pod)
        await self.cluster.patch_status(
            PODS, pod, {"status": ended_status(running, exit_code, ended or now(), disrupted)}
        )

    async def show_again(self, pod: Key) -> None:
        """kwok now and then misses a pod that is bound in the moment when it takes the node over."""
        seen = {"metadata": {"annotations": {"contract.holdfast.dev/shown": now()}}}
        await self.cluster.patch(PODS, pod, seen)

    async def token(self, pod: Pod, audience: str, *, account: str = "default") -> str:
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
        spec = {"audiences": [audience], "expirationSeconds": 600, "boundObjectRef": bound}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        # A subresource, asked for as if it were a collection of its own.
        tokens = resource("", "v1", "TokenRequest", f"serviceaccounts/{account}/token")
        made = await self.cluster.create(tokens, body, namespace=pod.metadata.namespace)
        return str(made.status["token"])

    async def forget(self, resource: Resource[Any]) -> None:
        """A changed definition makes the API server build the kind's watch cache anew, without its history."""
        before = (await self.cluster.list(resource)).resource_version
        key = Key("", f"{resource.plural}.{resource.group}")
        change = {"spec": {"names": {"categories": [f"c{secrets.token_hex(4)}"]}}}
        await self.cluster.patch(DEFINITIONS, key, change)
        await eventually(partial(self._is_forgotten, resource, before), bool, what=f"{resource} before {before} expire")

    async def _is_forgotten(self, resource: Resource[Any], version: str) -> bool:
        try:
            async with asyncio.timeout(PROBE_S), self.cluster.watch(resource, resource_version=version) as events:
                await anext(events, None)
        except Expired:
            return True
        except TimeoutError:
            return False
        return False


def now() -> str:
    return format_time(datetime.now(UTC))


def is_open(node: Document) -> bool:
    return all(taint["key"] != "node.kubernetes.io/not-ready" for taint in node.spec.get("taints", ()))


def ready(status: str, now: str) -> JSON:
    return {
        "type": "Ready",
        "status": status,
        "reason": "Told",
        "message": "as the test says",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }


def ended_status(pod: Pod, exit_code: int, ended: str, disrupted: bool) -> JSON:
    """What a kubelet reports of a pod that will not run again."""
    terminated = {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed", "finishedAt": ended}
    containers = [
        {
            "name": container.name,
            "image": "",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": terminated},
        }
        for container in pod.status.container_statuses
    ]
    conditions = [
        {"type": c.type, "status": "False" if c.type in ("Ready", "ContainersReady") else c.status}
        for c in pod.status.conditions
    ]
    if disrupted:
        conditions.append({"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"})
    phase = "Failed" if exit_code else "Succeeded"
    return {"phase": phase, "containerStatuses": containers, "conditions": conditions}
