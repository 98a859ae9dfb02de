"""The operator as a process that dies at one of its steps: writes to the cluster, and calls of the cloud."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random
from typing import Any

from msgspec import Struct

from holdfast.checkpointbackup.controller import checkpoint_backup_controller
from holdfast.cluster.errors import NotLeading
from holdfast.cluster.protocol import Cluster, Resource
from holdfast.cluster.resources import EVENTS
from holdfast.local.apiserver.server import EmbeddedCluster
from holdfast.machines.clouds import Clouds
from holdfast.machines.machines import machines
from holdfast.machines.snapshot import TIMING as MACHINE_TIMING
from holdfast.machines.snapshot import MachineTiming
from holdfast.providers.gcp.credentials import parse_service_account
from holdfast.providers.gcp.http import HttpRequest, HttpResponse
from holdfast.providers.gcp.provider import connect
from holdfast.providers.protocol import Provider
from holdfast.runtime.backup_requests import BackupRequests
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator
from holdfast.runtime.secrets import SecretReader
from holdfast.scheduling.machine_pools import MachinePools
from holdfast.spotinstancejob.controller import spot_instance_job_controller
from holdfast.spotinstancejob.snapshot import TIMING, SpotInstanceJobTiming
from tests.checkpointbackup.controller.lab import NoCredentials
from tests.controllers.operating import DEFAULTS
from tests.machines.controller.dying import DyingCluster, Process
from tests.providers.compute_engine.double import ComputeEngine
from tests.providers.compute_engine.server import InProcess
from tests.spot.computers import HOME, Computers, ScriptedJoiner
from tests.spot.trainings import Images

BEGINNING = datetime(2026, 3, 1, tzinfo=UTC)
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


class Surroundings(Struct, frozen=True, kw_only=True):
    """What every operator finds when it starts."""

    cluster: EmbeddedCluster
    engine: ComputeEngine
    computers: Computers
    images: Images
    seed: int
    machine_timing: MachineTiming = MACHINE_TIMING
    timing: SpotInstanceJobTiming = TIMING


def new_operator(around: Surroundings, process: Process) -> Operator:
    """As that process; with all its controllers, and not running yet."""
    dying: Any = OperatorCluster(around.cluster, process)
    cluster: Cluster = dying
    clock, random = asyncio.get_running_loop().time, Random(around.seed)
    operator = Operator(cluster, identity="operator", now=now, random=random, metrics=Metrics())
    pools, ledger = MachinePools(lambda: 0.0), SharedLedger(operator)

    def connected(project: str, credential: bytes | None) -> Provider:
        return _connected(around, process, project, credential)

    operator.add(
        checkpoint_backup_controller(
            operator, cluster, now=now, requests=BackupRequests(), credentials=NoCredentials(), clock=clock
        )
    )
    machines(
        operator,
        cluster,
        lambda observe: Clouds(
            SecretReader(cluster, operator_account=f"{HOME}:holdfast-operator"), connected, clock=clock
        ),
        ScriptedJoiner(cluster, around.computers, now),
        pools,
        namespace=HOME,
        now=now,
        random=random,
        timing=around.machine_timing,
    ).add_to(operator)
    operator.add(
        spot_instance_job_controller(
            operator,
            cluster,
            defaults=DEFAULTS,
            now=now,
            pools=pools,
            repository=around.images,
            ledger=ledger,
            timing=around.timing,
        )
    )
    return operator


def _connected(around: Surroundings, process: Process, project: str, credential: bytes | None) -> Provider:
    def require_leadership() -> None:
        if process.has_died:
            raise NotLeading("died before")

    return connect(
        project,
        known_account(credential) if credential is not None else None,
        now=now,
        random=Random(around.seed),
        require_leadership=require_leadership,
        endpoint=around.engine.endpoint,
        http=OperatorHttp(around.engine, process),
    )
