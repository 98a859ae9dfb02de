"""One namespace with a SpotInstanceJob and its SpotInstanceVM, seen through what a user can see."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from msgspec import structs

from holdfast.api.checkpointbackup import TERMINAL_PHASES, CheckpointBackup
from holdfast.api.meta import Key, Object
from holdfast.api.provisionedinstance import ProvisionedInstance
from holdfast.api.spotinstancejob import SpotInstanceJobSpec
from holdfast.api.spotinstancejob_status import ReplicaStatus, SpotInstanceJobStatus
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.cluster.resources import (
    CHECKPOINT_BACKUPS,
    NODES,
    PROVISIONED_INSTANCES,
    SPOT_INSTANCE_JOBS,
    SPOT_INSTANCE_VMS,
)
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now, utc_now
from holdfast.scheduling.machine_pools import MachinePools
from holdfast.spotinstancejob.controller import spot_instance_job_controller
from holdfast.spotinstancejob.snapshot import TIMING, SpotInstanceJobTiming, condition_of
from tests.contract.pods import POOL
from tests.contract.waiting import listed
from tests.controllers.lab import ControllerLab, seen_as
from tests.controllers.operating import DEFAULTS, namespace_operator, running
from tests.spotinstancejob.controller.players import AddNode, Agents, Cloud, PlayedRegistry, played_by

MANIFESTS = Path(__file__).parents[2] / "fixtures/manifests"
GPU = "nvidia.com/gpu"


def fixture(name: str) -> JSON:
    """A manifest as users have written it."""
    body: JSON = yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text())
    return body


class SeenSpotJob(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A SpotInstanceJob as tests look at it: its status is there, if only empty."""

    spec: SpotInstanceJobSpec
    status: SpotInstanceJobStatus = SpotInstanceJobStatus()

    @property
    def message(self) -> str:
        return self.status.message or ""

    def replica(self, number: int) -> ReplicaStatus:
        return next(each for each in self.status.job_statuses if each.replica == number)

    def holds(self, kind: str) -> bool:
        found = condition_of(self.status, kind)
        return found is not None and found.status == "True"

    def reason(self, kind: str) -> str:
        found = condition_of(self.status, kind)
        return found.reason if found is not None else ""

    def said(self, kind: str) -> str:
        found = condition_of(self.status, kind)
        return found.message if found is not None else ""


class SpotLab(ControllerLab[SeenSpotJob]):
    """Its replicas only go to the test's own nodes and machines."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        super().__init__(cluster, namespace, seen_as(SeenSpotJob, SPOT_INSTANCE_JOBS), "my-training-job")
        self.registry = PlayedRegistry()
        self.cloud: Cloud
        self.agents: Agents

    async def apply_manifests(self, **spec: Any) -> SeenSpotJob:
        """The fixture manifests, with nothing changed but where replicas may run."""
        await self.create_template()
        return await self.submit(**spec)

    async def create_template(self, **spec: Any) -> None:
        body = fixture("spotinstancevm")
        body["spec"] |= spec
        await self.cluster.create(SPOT_INSTANCE_VMS, body, namespace=self.namespace)

    async def submit(self, **spec: Any) -> SeenSpotJob:
        body = fixture("spotinstancejob")["spec"]
        body["jobTemplate"]["spec"]["template"]["spec"]["nodeSelector"] = {POOL: self.namespace}
        body["jobTemplate"]["spec"] |= spec.pop("job_spec", {})
        body["checkpointConfig"] |= spec.pop("checkpoints", {})
        return await self.create({**body, **spec})

    async def until_phase(self, phase: str) -> SeenSpotJob:
        return await self.until(lambda it: it.status.phase == phase, f"is {phase}")

    async def until_running(self, replicas: int = 2) -> SeenSpotJob:
        def all_run(it: SeenSpotJob) -> bool:
            return it.status.active_replicas == replicas and it.status.phase == "Running"

        return await self.until(all_run, f"{replicas} replicas run")

    async def until_attempt(self, replica: int, attempt: int, phase: str = "Running") -> SeenSpotJob:
        def there(it: SeenSpotJob) -> bool:
            return any(
                (each.replica, each.attempt, each.phase) == (replica, attempt, phase) for each in it.status.job_statuses
            )

        return await self.until(there, f"replica {replica} is {phase} at attempt {attempt}")

    async def until_saved(self) -> str:
        """The newest image, once there is one; from then on none is made for an hour."""
        await self.until(lambda it: it.status.last_checkpoint_image, "was saved")
        await self.patch(checkpointConfig={"checkpointInterval": "1h"})

        def rests(it: SeenSpotJob) -> bool:
            return it.status.checkpoint_interval_seconds == 3600 and not it.status.checkpoints_in_progress

        return (await self.until(rests, "is not saved any more")).status.last_checkpoint_image or ""

    async def until_says(self, text: str) -> SeenSpotJob:
        return await self.until(lambda it: text in it.message, f"says {text!r}")

    async def machines(
        self, holds: Callable[[Mapping[str, ProvisionedInstance]], object]
    ) -> dict[str, ProvisionedInstance]:
        """What is ordered, by name, once the condition holds for it."""
        found = await listed(
            self.cluster,
            PROVISIONED_INSTANCES,
            self.namespace,
            lambda items: holds({each.metadata.name: each for each in items}),
            "machines",
        )
        return {each.metadata.name: each for each in found}

    async def open_backups(self, count: int) -> list[Key]:
        """Checkpoints that nobody has carried out, once there are so many."""

        def is_open(backup: CheckpointBackup) -> bool:
            return backup.status is None or backup.status.phase not in TERMINAL_PHASES

        found = await listed(
            self.cluster,
            CHECKPOINT_BACKUPS,
            self.namespace,
            lambda items: sum(map(is_open, items)) == count,
            f"{count} checkpoints under way",
        )
        return sorted(each.metadata.key for each in found if is_open(each))

    async def backups_under_way(self) -> list[Key]:
        found = await self.cluster.list(CHECKPOINT_BACKUPS, namespace=self.namespace)
        return [each.metadata.key for each in found.items if each.status is None or each.status.phase is None]

    async def end_pod(self, job: str, end: Callable[[Key], Any]) -> None:
        """Have the pod of that Job end."""
        for pod in await self.pods():
            owner = pod.metadata.controller
            if owner is not None and owner.name == job:
                await end(pod.metadata.key)

    async def drop(self) -> None:
        """The nodes of machines that are still there."""
        for node in self.cloud.nodes:
            with suppress(NotFound):
                await self.cluster.delete(NODES, Key("", node))


@asynccontextmanager
async def spot_jobs_run(
    lab: SpotLab,
    add_node: AddNode,
    *,
    now: Now = utc_now,
    pools: MachinePools | None = None,
    timing: SpotInstanceJobTiming = TIMING,
    **changed: Any,
) -> AsyncIterator[Operator]:
    """Inside the block an operator looks after the lab's jobs, and players after their machines and checkpoints."""
    operator = namespace_operator(lab.cluster, lab.namespace, now=now)
    operator.add(
        spot_instance_job_controller(
            operator,
            lab.cluster,
            defaults=DEFAULTS,
            now=now,
            pools=pools or MachinePools(lambda: 0.0),
            repository=lab.registry,
            timing=structs.replace(timing, **changed),
        )
    )
    world = namespace_operator(lab.cluster, lab.namespace, now=now)
    lab.cloud = Cloud(lab.cluster, world.store(PROVISIONED_INSTANCES), add_node)
    lab.agents = Agents(lab.cluster, world.store(CHECKPOINT_BACKUPS), lab.registry, now)
    world.add(played_by(world, "cloud", PROVISIONED_INSTANCES, lab.cloud))
    world.add(played_by(world, "agents", CHECKPOINT_BACKUPS, lab.agents))
    async with running(world), running(operator):
        yield operator
