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
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random
from typing import Any

from holdfast.api.meta import Key
from holdfast.api.provisionedinstance import SPOT_NODE_LABEL, ProvisionedInstance
from holdfast.checkpointbackup.controller import checkpoint_backup_controller
from holdfast.cluster.errors import AlreadyExists, NotLeading
from holdfast.cluster.protocol import JSON, Cluster, Resource
from holdfast.cluster.resources import (
    CHECKPOINT_BACKUPS,
    EVENTS,
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
from holdfast.machines.clouds import Clouds
from holdfast.machines.machines import Machines, machines
from holdfast.machines.snapshot import TIMING as MACHINE_TIMING
from holdfast.machines.snapshot import MachineTiming
from holdfast.providers.gcp.credentials import parse_service_account
from holdfast.providers.gcp.http import HttpRequest, HttpResponse
from holdfast.providers.gcp.provider import connect
from holdfast.providers.protocol import Provider
from holdfast.runtime.backup_requests import BackupRequests
from holdfast.runtime.controller import Controller
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator
from holdfast.runtime.secrets import SecretReader
from holdfast.scheduling.machine_pools import MachinePools
from holdfast.spotinstancejob.controller import spot_instance_job_controller
from holdfast.spotinstancejob.snapshot import TIMING, SpotInstanceJobTiming
from tests.checkpointbackup.controller.lab import NoCredentials
from tests.controllers.lab import seen_as
from tests.controllers.operating import DEFAULTS
from tests.machines.controller.dying import DyingCluster, Process
from tests.providers.compute_engine.double import PROJECT, ComputeEngine
from tests.providers.compute_engine.machine import FakeMachine
from tests.providers.compute_engine.server import InProcess
from tests.providers.gcp.lab import IMAGE
from tests.spot.computers import HOME, Computers, ScriptedJoiner
from tests.spot.history import History
from tests.spot.trainings import Agents, Images, Kubelets, Training
from tests.spotinstancejob.controller.lab import SeenSpotJob

BEGINNING = datetime(2026, 3, 1, tzinfo=UTC)
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
LISTS = "aggregated"


known_account = cache(parse_service_account)
"""Checking a key takes longer than all that an operator does with it."""


def now() -> datetime:
    """The clock of the event loop, which is virtual."""
    return BEGINNING + timedelta(seconds=asyncio.get_running_loop().time())


class OperatorCluster(DyingCluster):
    """Its writes are steps of the process. Events decide nothing: they are none."""

    def _begin(self, verb: str, resource: Resource[Any]) -> str:
        if resource.plural != EVENTS.plural:
            return super()._begin(verb, resource)
        if self._process.has_died:
            raise NotLeading("died before")
        return ""

    def _end(self, step: str, answer: Any) -> Any:
        return super()._end(step, answer) if step else answer


class OperatorHttp(InProcess):
    """Its calls are steps, too, but for the lists, which come at any time and change nothing."""

    def __init__(self, engine: ComputeEngine, process: Process) -> None:
        super().__init__(engine)
        self._process = process

    async def send(self, request: HttpRequest) -> HttpResponse:
        path = request.url.rpartition("/compute/v1/")[2].partition("?")[0]
        if LISTS in path and not self._process.has_died:
            return await super().send(request)
        step = f"{request.method} {path.partition('zones/')[2] or 'token'}"
        self._process.before(step)
        answer = await super().send(request)
        self._process.after(step)
        return answer


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
        self.machines: Machines | None = None
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
        process, random = self.process, Random(self.seed)
        dying: Any = OperatorCluster(self.cluster, process)
        cluster: Cluster = dying
        operator = Operator(cluster, identity="operator", now=now, random=random, metrics=Metrics())
        pools, ledger = MachinePools(lambda: 0.0), SharedLedger(operator)
        operator.add(
            checkpoint_backup_controller(
                operator,
                cluster,
                now=now,
                requests=BackupRequests(),
                credentials=NoCredentials(),
                clock=asyncio.get_running_loop().time,
            )
        )
        self.machines = machines(
            operator,
            cluster,
            lambda observe: Clouds(
                SecretReader(cluster, operator_account=f"{HOME}:holdfast-operator"),
                lambda project, credential: self._connect(project, credential, process),
                clock=asyncio.get_running_loop().time,
            ),
            ScriptedJoiner(cluster, self.computers, now),
            pools,
            namespace=HOME,
            now=now,
            random=random,
            timing=self.machine_timing,
        )
        self.machines.add_to(operator)
        operator.add(
            spot_instance_job_controller(
                operator,
                cluster,
                defaults=DEFAULTS,
                now=now,
                pools=pools,
                repository=self.images,
                ledger=ledger,
                timing=self.timing,
            )
        )
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

    def _connect(self, project: str, credential: bytes | None, process: Process) -> Provider:
        def require_leadership() -> None:
            if process.has_died:
                raise NotLeading("died before")

        return connect(
            project,
            known_account(credential) if credential is not None else None,
            now=now,
            random=Random(self.seed),
            require_leadership=require_leadership,
            endpoint=self.engine.endpoint,
            http=OperatorHttp(self.engine, process),
        )

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
