"""An operator for machines on the embedded engine, in virtual time: a cloud, kubelets, and whoever orders machines."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec

from holdfast.api.core.objects import Node
from holdfast.api.machine_ends import is_gone
from holdfast.api.meta import Condition, Key
from holdfast.api.provisionedinstance import MACHINE_FINALIZER, ProvisionedInstance, ProvisionedInstanceStatus
from holdfast.api.spotinstancevm import SpotInstanceVM
from holdfast.cluster.errors import AlreadyExists, NotFound, NotLeading
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import (
    EVENTS,
    NAMESPACES,
    NODES,
    PROVISIONED_INSTANCES,
    SECRETS,
    SPOT_INSTANCE_JOBS,
    SPOT_INSTANCE_VMS,
)
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.machines.clouds import Clouds, Connect
from holdfast.machines.joining import (
    HostKeySource,
    Joiner,
    JoinFailed,
    JoinProgress,
    JoinRequest,
    JoinStep,
    JoinTarget,
    Report,
)
from holdfast.machines.machines import Machines, machines
from holdfast.machines.projects import MachineProjects
from holdfast.machines.snapshot import MachineTiming
from holdfast.pods.failure import PREEMPTED
from holdfast.providers.protocol import MachineSpec
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator
from holdfast.runtime.secrets import SecretReader
from holdfast.scheduling.machine_pools import MachinePools
from holdfast.times import format_time
from tests.machines.controller.dying import Process, seen_by
from tests.machines.fake_cloud import FakeCloud

BEGINNING = datetime(2026, 3, 1, tzinfo=UTC)
NAMESPACE, HOME = "ml", "holdfast-system"
TEMPLATE = {
    "vmImage": "images/gpu",
    "gpu": {"type": "nvidia-tesla-t4", "count": 2},
    "gcp": {"project": "lab-project", "zone": "us-central1-a", "machineType": "n1-standard-4"},
    "zones": ["us-central1-b"],
}
JOB = {
    "jobTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}}},
    "checkpointConfig": {"checkpointImageRepo": "registry.example.com/checkpoints", "checkpointInterval": "30m"},
    "spotInstanceVMRef": {"name": "t4"},
    "gcpCredentialsSecretRef": {"name": "gcp"},
}
CREDENTIAL = {"credentialsSecretRef": {"name": "gcp"}}
TIMING = MachineTiming(settle_s=0)
STEP_S = 1.0


def now() -> datetime:
    """The clock of the event loop, which is virtual."""
    return BEGINNING + timedelta(seconds=asyncio.get_running_loop().time())


class FakeJoiner:
    """Joins by waiting for the Node; `error` is raised instead, `obstacle` before a machine is made."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.error: JoinFailed | None = None
        self.obstacle: Exception | None = None
        self.joined: list[JoinRequest] = []
        self.revoked: list[str] = []

    async def metadata(self, target: JoinTarget) -> Mapping[str, str]:
        if self.obstacle is not None:
            raise self.obstacle
        return {"startup-script": target.startup_script}

    async def join(self, request: JoinRequest, provider: HostKeySource, report: Report) -> None:
        self.joined.append(request)
        deadline = now() + timedelta(seconds=300)
        report(JoinProgress(step=JoinStep.LOGIN, deadline=deadline, message="logging in"))
        if self.error is not None:
            raise self.error
        while True:
            with suppress(NotFound):
                await self._cluster.get(NODES, Key("", request.target.node_name))
                return
            await asyncio.sleep(1)

    async def revoke(self, uid: str) -> None:
        self.revoked.append(uid)


class MachineLab:
    """What a test does and looks at. Its operator may die and be started anew."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self.cloud = FakeCloud(now)
        self.cloud.on_running = self.boot
        self.joiner = FakeJoiner(cluster)
        self.gpus = 2
        self.boots = True
        """Whether machines become Nodes."""
        self.node_name: Callable[[str], str] = lambda name: name
        self.connect: Connect = lambda project, credential: self.cloud
        self.own_identity: tuple[str, ...] = ()
        self.pools = MachinePools(jitter=lambda: 0.0)
        self.operator: Operator | None = None
        self.machines: Machines | None = None
        self._running: asyncio.Task[None] | None = None

    # The operator.

    def start(self, process: Process | None = None, *, timing: MachineTiming = TIMING) -> None:
        """As that process, which may die."""
        process = process or Process()
        self.cloud.gate = lambda call, moment: getattr(process, moment)(f"{call} machine")
        cluster = seen_by(process, self.cluster)
        operator = Operator(cluster, identity="test", now=now, random=Random(0), metrics=Metrics())
        secrets = SecretReader(cluster, operator_account="holdfast-system:holdfast-operator")
        self.pools = MachinePools(jitter=lambda: 0.0)
        self.machines = machines(
            operator,
            cluster,
            lambda observe: Clouds(
                secrets,
                lambda project, credential: self.connect(project, credential),
                clock=asyncio.get_running_loop().time,
                own_identity_namespaces=self.own_identity,
            ),
            self.new_joiner(cluster),
            self.pools,
            namespace=HOME,
            now=now,
            random=Random(0),
            timing=timing,
        )
        self.machines.add_to(operator)
        self.operator, self._running = operator, asyncio.create_task(operator.run())

    def new_joiner(self, cluster: Cluster) -> Joiner:
        """Of an operator that starts."""
        return self.joiner

    def revive(self) -> None:
        """If it has died, another one takes over."""
        if self.has_died:
            self.start()

    @property
    def has_died(self) -> bool:
        if self._running is None or not self._running.done():
            return False
        assert isinstance(self._running.exception(), NotLeading), self._running.exception()
        return True

    async def stop(self) -> None:
        if self.operator is not None and self._running is not None:
            self.operator.stop()
            await asyncio.wait([self._running])
            if not self._running.cancelled() and self._running.exception() is not None:
                assert self.has_died
        self.operator = self._running = None

    async def restart(self) -> None:
        await self.stop()
        self.start()

    # Machines and kubelets.

    async def boot(self, spec: MachineSpec) -> None:
        """The kubelet of the machine registers its Node, and the device plugin offers GPUs."""
        if self.boots:
            await self.add_node(self.node_name(spec.name), labels={"holdfast.dev/instance": spec.uid})

    async def add_node(self, name: str, *, labels: Mapping[str, str] | None = None) -> None:
        status = {
            "allocatable": {"nvidia.com/gpu": str(self.gpus)},
            "conditions": [_ready(True)],
        }
        with suppress(AlreadyExists):
            await self.cluster.create(NODES, {"metadata": {"name": name, "labels": dict(labels or {})}})
        await self.cluster.patch_status(NODES, Key("", name), {"status": status})

    async def set_node(self, name: str, *, ready: bool = True, marked: str = "") -> None:
        conditions = [_ready(ready)]
        if marked:
            conditions.append({**_ready(True), "type": PREEMPTED, "message": marked})
        await self.cluster.patch_status(NODES, Key("", name), {"status": {"conditions": conditions}})

    async def taint(self, name: str, key: str) -> None:
        node = await self.cluster.get(NODES, Key("", name))
        taints = [*msgspec.to_builtins(node.spec.taints), {"key": key, "effect": "NoSchedule"}]
        await self.cluster.patch(NODES, Key("", name), {"spec": {"taints": taints}})

    async def node(self, name: str) -> Node | None:
        with suppress(NotFound):
            return await self.cluster.get(NODES, Key("", name))
        return None

    # Objects.

    async def prepare(self) -> None:
        for namespace in (NAMESPACE, HOME, "kube-system"):
            with suppress(AlreadyExists):
                await self.cluster.create(NAMESPACES, {"metadata": {"name": namespace}})
        await self.secret()
        await self.template()

    async def secret(self, name: str = "gcp", content: str = "{}") -> None:
        data = {"credentials.json": base64.b64encode(content.encode()).decode()}
        await self.cluster.create(SECRETS, {"metadata": {"name": name}, "data": data}, namespace=NAMESPACE)

    async def template(self, name: str = "t4", **spec: Any) -> SpotInstanceVM:
        body = {"metadata": {"name": name}, "spec": {**TEMPLATE, **spec}}
        return await self.cluster.create(SPOT_INSTANCE_VMS, body, namespace=NAMESPACE)

    async def job(self, name: str = "bert") -> str:
        """The uid of a new job, which nobody looks after here."""
        made = await self.cluster.create(
            SPOT_INSTANCE_JOBS, {"metadata": {"name": name}, "spec": JOB}, namespace=NAMESPACE
        )
        return made.metadata.uid

    async def order(self, name: str = "m", *, job_uid: str = "", **spec: Any) -> ProvisionedInstance:
        metadata: dict[str, Any] = {"name": name, "finalizers": [MACHINE_FINALIZER]}
        if job_uid:
            owner = {"apiVersion": SPOT_INSTANCE_JOBS.api_version, "kind": "SpotInstanceJob", "name": "bert"}
            metadata["ownerReferences"] = [{**owner, "uid": job_uid}]
        body = {"metadata": metadata, "spec": {"vmRef": {"name": "t4"}, **CREDENTIAL, **spec}}
        return await self.cluster.create(PROVISIONED_INSTANCES, body, namespace=NAMESPACE)

    async def get(self, name: str = "m") -> ProvisionedInstance:
        return await self.cluster.get(PROVISIONED_INSTANCES, Key(NAMESPACE, name))

    async def find(self, name: str = "m") -> ProvisionedInstance | None:
        with suppress(NotFound):
            return await self.get(name)
        return None

    async def delete(self, name: str = "m") -> None:
        await self.cluster.delete(PROVISIONED_INSTANCES, Key(NAMESPACE, name))

    async def vm(self, name: str = "t4") -> SpotInstanceVM:
        return await self.cluster.get(SPOT_INSTANCE_VMS, Key(NAMESPACE, name))

    # Waiting, in virtual time.

    async def until(
        self, holds: Callable[[ProvisionedInstance], object], name: str = "m", *, within_s: float = 2000.0
    ) -> ProvisionedInstance:
        it = await self.get(name)
        for _ in range(int(within_s / STEP_S)):
            if holds(it):
                return it
            await asyncio.sleep(STEP_S)
            self.revive()
            it = await self.get(name)
        raise AssertionError(f"not so: {it}")

    async def until_phase(self, phase: str, name: str = "m", **options: Any) -> ProvisionedInstance:
        return await self.until(lambda it: status(it).phase == phase, name, **options)

    async def until_serving(self, name: str = "m") -> ProvisionedInstance:
        return await self.until_phase("Serve", name)

    async def until_ended(self, name: str = "m", **options: Any) -> ProvisionedInstance:
        return await self.until(lambda it: is_gone(it) and not it.metadata.finalizers, name, **options)

    async def until_absent(self, name: str = "m", *, within_s: float = 2000.0) -> None:
        for _ in range(int(within_s / STEP_S)):
            if await self.find(name) is None:
                return
            await asyncio.sleep(STEP_S)
            self.revive()
        raise AssertionError(f"still there: {await self.find(name)}")

    async def cluster_uid(self) -> str:
        return (await self.cluster.get(NAMESPACES, Key("", "kube-system"))).metadata.uid

    @property
    def projects(self) -> MachineProjects:
        return MachineProjects(self.cluster, HOME)

    def sample(self, name: str, **labels: str) -> float | None:
        assert self.operator is not None
        return self.operator.registry.get_sample_value(name, labels)

    async def event_reasons(self) -> list[str]:
        found = await self.cluster.list(EVENTS, namespace=NAMESPACE)
        return sorted(event.reason for event in found.items)


def _ready(is_ready: bool) -> dict[str, Any]:
    at = format_time(now())
    return {"type": "Ready", "status": "True" if is_ready else "False", "lastTransitionTime": at}


def status(instance: ProvisionedInstance) -> ProvisionedInstanceStatus:
    return instance.status or ProvisionedInstanceStatus()


def condition(instance: ProvisionedInstance, kind: str) -> tuple[str, str]:
    """Status and reason."""
    found: Iterable[Condition] = (each for each in status(instance).conditions if each.type == kind)
    return next(((each.status, each.reason) for each in found), ("", ""))


@asynccontextmanager
async def machine_lab(*, running: bool = True) -> AsyncIterator[MachineLab]:
    cluster = await open_cluster(None, now=now, rng=Random(1))
    lab = MachineLab(cluster)
    await lab.prepare()
    if running:
        lab.start()
    try:
        yield lab
    finally:
        await lab.stop()
        await cluster.close()
