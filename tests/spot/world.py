"""holdfast's operator with all that it needs around it: a cluster, a cloud, computers and what runs on them.

Only the operator is real, and the cluster's API server and controllers. Time is virtual, chance comes from a seed, and
the operator may die at any of its steps.

async with world() as it:
    await it.prepare()
    await it.submit("bert")
    job = await it.until(lambda job: job.status.phase == "Running", "bert")
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from random import Random
from typing import Any

from holdfast.api.meta import Key
from holdfast.api.provisionedinstance import SPOT_NODE_LABEL, ProvisionedInstance
from holdfast.cluster.errors import AlreadyExists, NotLeading
from holdfast.cluster.protocol import JSON, Resource
from holdfast.cluster.resources import (
    CHECKPOINT_BACKUPS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    PROVISIONED_INSTANCES,
    SECRETS,
    SPOT_INSTANCE_JOBS,
    SPOT_INSTANCE_VMS,
)
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.local.controllers import add_kube_controllers
from holdfast.machines.snapshot import TIMING as MACHINE_TIMING
from holdfast.machines.snapshot import MachineTiming
from holdfast.runtime.controller import Controller
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator
from holdfast.spotinstancejob.snapshot import TIMING, SpotInstanceJobTiming
from tests.controllers.lab import seen_as
from tests.machines.controller.dying import Process
from tests.providers.compute_engine.double import PROJECT, ComputeEngine
from tests.providers.compute_engine.machine import FakeMachine
from tests.providers.gcp.lab import IMAGE
from tests.spot.computers import HOME, Computers
from tests.spot.history import History
from tests.spot.operators import Surroundings, new_operator, now
from tests.spot.trainings import Agents, Images, Kubelets, Training
from tests.spotinstancejob.controller.lab import SeenSpotJob

NAMESPACE = "ml"
ZONES = ("us-central1-a", "us-central1-b")
TEMPLATE: dict[str, Any] = {
    "vmImage": IMAGE,
    "gpu": {"type": "nvidia-tesla-t4", "count": 1},
    "gcp": {"project": PROJECT, "zone": ZONES[0], "machineType": "n1-standard-4"},
    "zones": [ZONES[1]],
}
STEP_S = 1.0
SPOT_JOBS = seen_as(SeenSpotJob, SPOT_INSTANCE_JOBS)


class World:
    """What a test does and looks at."""

    def __init__(self, cluster: EmbeddedCluster, *, seed: int = 0) -> None:
        self.cluster = cluster
        self.seed = seed
        self.engine = ComputeEngine(now=now)
        self.account = self.engine.add_account()
        self.computers = Computers(self.engine, cluster, now)
        self.images = Images()
        self._plane = Operator(cluster, identity="plane", now=now, random=Random(seed), metrics=Metrics())
        add_kube_controllers(self._plane, cluster, now=now, grace_s=1e9)
        self.kubelets = Kubelets(cluster, self._plane.store(PODS), self.images, self._is_on, now)
        self.agents = Agents(
            cluster, self._plane.store(CHECKPOINT_BACKUPS), self.kubelets, self.images, self._is_on, now
        )
        self.history = History(self.engine)
        self._play("kubelets", PODS, self.kubelets)
        self._play("agents", CHECKPOINT_BACKUPS, self.agents, self.history)
        self.process = Process()
        self.machine_timing: MachineTiming = MACHINE_TIMING
        self.timing: SpotInstanceJobTiming = TIMING
        self.next_process: Callable[[], Process] = Process
        """What follows an operator that has died."""
        self.away_s = 5.0
        """How long after the death of an operator the next one starts."""
        self.operator: Operator | None = None
        self.steps: list[str] = []
        """Of the operators that are no more."""
        self.deaths = 0
        self._playing: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._died_at: datetime | None = None

    def _play(self, name: str, resource: Resource[Any], reconciler: Any, *sources: Any) -> None:
        writer = self._plane.writer()
        self._plane.add(Controller(name=name, resource=resource, reconciler=reconciler, writer=writer, watches=sources))

    def _is_on(self, node: str) -> bool:
        return node in self.computers.on

    # The operator.

    def start(self, process: Process | None = None) -> None:
        """As that process, which may die."""
        self.process = process or Process()
        around = Surroundings(
            cluster=self.cluster,
            engine=self.engine,
            computers=self.computers,
            images=self.images,
            seed=self.seed,
            machine_timing=self.machine_timing,
            timing=self.timing,
        )
        operator = new_operator(around, self.process)
        self.operator, self._running = operator, asyncio.create_task(operator.run())

    async def stop(self) -> None:
        if self.operator is not None and self._running is not None:
            self.operator.stop()
            await asyncio.wait([self._running])
            error = None if self._running.cancelled() else self._running.exception()
            if error is not None and not isinstance(error, NotLeading):
                raise error
            self.steps += self.process.steps
        self.operator = self._running = None

    @property
    def is_running(self) -> bool:
        return self._running is not None and not self._running.done()

    async def kill(self) -> None:
        """The operator dies where it is."""
        assert self._running is not None
        self.process.has_died = True
        self._running.cancel()
        await asyncio.wait([self._running])
        self._died_at = now()

    async def look_after_operator(self) -> None:
        """One that has died is followed by another one after a while."""
        if self._running is None or not self._running.done():
            return
        if self._died_at is None:
            error = self._running.exception()
            if not isinstance(error, NotLeading):
                raise AssertionError("the operator has crashed") from error
            self._died_at = now()
        if now() >= self._died_at + timedelta(seconds=self.away_s):
            self._died_at = None
            self.steps += self.process.steps
            self.deaths += 1
            self.start(self.next_process())

    # What users do.

    async def prepare(self, **template: Any) -> None:
        for namespace in (NAMESPACE, HOME, "kube-system"):
            with suppress(AlreadyExists):
                await self.cluster.create(NAMESPACES, {"metadata": {"name": namespace}})
        await self.secret()
        await self.template(**template)

    async def secret(self) -> None:
        data = {"credentials.json": base64.b64encode(self.account.key_file()).decode()}
        await self.cluster.create(SECRETS, {"metadata": {"name": "gcp"}, "data": data}, namespace=NAMESPACE)

    async def template(self, name: str = "t4", **spec: Any) -> None:
        body = {"metadata": {"name": name}, "spec": {**TEMPLATE, **spec}}
        await self.cluster.create(SPOT_INSTANCE_VMS, body, namespace=NAMESPACE)

    async def submit(
        self,
        name: str = "bert",
        *,
        checkpoints: Mapping[str, Any] = {},
        job_spec: Mapping[str, Any] = {},
        **spec: Any,
    ) -> SeenSpotJob:
        container = {
            "name": "main",
            "image": "registry.example.com/train:1",
            "resources": {"limits": {"nvidia.com/gpu": 1}},
        }
        body: JSON = {
            "replicas": 2,
            "jobTemplate": {"spec": {"template": {"spec": {"containers": [container]}}, **job_spec}},
            "checkpointConfig": {
                "checkpointImageRepo": "registry.example.com/checkpoints",
                "checkpointInterval": "10m",
                "mode": "container",
                **checkpoints,
            },
            "spotInstanceVMRef": {"name": "t4"},
            "gcpCredentialsSecretRef": {"name": "gcp"},
            **spec,
        }
        return await self.cluster.create(SPOT_JOBS, {"metadata": {"name": name}, "spec": body}, namespace=NAMESPACE)

    async def change(self, name: str = "bert", **spec: Any) -> None:
        await self.cluster.patch(SPOT_JOBS, Key(NAMESPACE, name), {"spec": spec})

    async def delete(self, name: str = "bert") -> None:
        await self.cluster.delete(SPOT_JOBS, Key(NAMESPACE, name))

    # What Google does.

    def machine_of(self, training: Training) -> FakeMachine:
        return self.engine.machine(training.node)

    def preempt(self, *replicas: int, job: str = "bert") -> list[str]:
        """The machines under these replicas are taken back; their names."""
        running = [self.training(replica, job=job) for replica in replicas]
        for each in running:
            self.engine.preempt(self.machine_of(each))
        return [each.node for each in running]

    def took_back(self, training: Training) -> bool:
        """Whether Google has taken the machine under this training back, or is about to."""
        return any(each.name == training.node and each.preempted for each in self.engine.made)

    # What there is.

    def training(self, replica: int, *, job: str = "bert") -> Training:
        found = self.kubelets.running(job, replica)
        assert found is not None, f"{job} runs no replica {replica}"
        return found

    async def job(self, name: str = "bert") -> SeenSpotJob:
        return await self.cluster.get(SPOT_JOBS, Key(NAMESPACE, name))

    async def listed(self, resource: Resource[Any], namespace: str = NAMESPACE) -> list[Any]:
        return list((await self.cluster.list(resource, namespace=namespace)).items)

    async def orders(self) -> dict[str, ProvisionedInstance]:
        return {each.metadata.name: each for each in await self.listed(PROVISIONED_INSTANCES)}

    async def spot_nodes(self) -> list[str]:
        nodes = (await self.cluster.list(NODES)).items
        return [each.metadata.name for each in nodes if SPOT_NODE_LABEL in each.metadata.labels]

    async def leftovers(self) -> dict[str, list[str]]:
        """What costs money, or lies about."""
        tokens = [each for each in await self.listed(SECRETS, "kube-system") if "bootstrap" in each.metadata.name]
        found = {
            "machines": [each.name for each in self.engine.machines.values()],
            "nodes": await self.spot_nodes(),
            "orders": list(await self.orders()),
            "tokens": [each.metadata.name for each in tokens],
        }
        return {kind: names for kind, names in found.items() if names}

    async def objects(self, job: str = "bert") -> list[str]:
        """What is left of the job in the cluster."""
        kinds: tuple[Resource[Any], ...] = (JOBS, PODS, CHECKPOINT_BACKUPS, PROVISIONED_INSTANCES)
        found = [f"{kind.kind} {each.metadata.name}" for kind in kinds for each in await self.listed(kind)]
        return [each for each in found if f" {job}-" in each]

    # Waiting, in virtual time.

    async def pass_time(self, seconds: float) -> None:
        until = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until:
            await asyncio.sleep(STEP_S)
            await self.look_after_operator()

    async def wait_for(self, holds: Callable[[], Any], what: str, *, within_s: float = 3600.0) -> None:
        for _ in range(int(within_s / STEP_S)):
            found = holds()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(STEP_S)
            await self.look_after_operator()
        raise AssertionError(f"after {within_s:g} s it is not so: {what}")

    async def until(
        self, holds: Callable[[SeenSpotJob], object], name: str = "bert", *, what: str = "", within_s: float = 3600.0
    ) -> SeenSpotJob:
        it = await self.job(name)
        for _ in range(int(within_s / STEP_S)):
            if holds(it):
                return it
            await asyncio.sleep(STEP_S)
            await self.look_after_operator()
            it = await self.job(name)
        raise AssertionError(f"after {within_s:g} s not {what or 'so'}: {it.status}")

    async def until_running(self, *attempts: int, name: str = "bert", within_s: float = 3600.0) -> SeenSpotJob:
        """The replicas run, and are at these attempts."""

        def all_run(it: SeenSpotJob) -> bool:
            there = tuple(each.attempt for each in it.status.job_statuses if each.phase == "Running")
            return there == attempts

        return await self.until(all_run, name, what=f"running at attempts {attempts}", within_s=within_s)

    async def until_phase(self, phase: str, name: str = "bert", **options: Any) -> SeenSpotJob:
        return await self.until(lambda it: it.status.phase == phase, name, what=phase, **options)

    async def until_says(self, text: str, name: str = "bert", **options: Any) -> SeenSpotJob:
        return await self.until(lambda it: text in it.message, name, what=f"saying {text!r}", **options)

    async def until_clean(self, *, within_s: float = 1800.0) -> None:
        """All machines are given back."""

        async def clean() -> bool:
            return not await self.leftovers()

        try:
            await self.wait_for(clean, "nothing is left", within_s=within_s)
        except AssertionError as error:
            raise AssertionError(f"left: {await self.leftovers()}") from error

    def check(self) -> None:
        """The promises that hold at every moment."""
        problems = [*self.history.problems, *self.kubelets.problems]
        assert not problems, "\n".join(problems)

    async def __aenter__(self) -> "World":
        self._playing = asyncio.create_task(self._plane.run())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()
        self.computers.close()
        self.agents.close()
        self.kubelets.close()
        self._plane.stop()
        assert self._playing is not None
        await self._playing
        await self.engine.close()
        if error[0] is None:
            self.check()


@asynccontextmanager
async def world(
    *, running: bool = True, seed: int = 0, template: Mapping[str, Any] = {}, **settings: Any
) -> AsyncIterator[World]:
    """`template`: what its spec has besides; `settings`: attributes of the world that differ."""
    cluster = await open_cluster(None, now=now, rng=Random(seed))
    try:
        async with World(cluster, seed=seed) as it:
            for name, value in settings.items():
                assert hasattr(it, name), name
                setattr(it, name, value)
            await it.prepare(**template)
            if running:
                it.start()
            yield it
    finally:
        await cluster.close()
