"""All but real machines: Google is the double, machines are light ones, and the joiner logs in to them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import SECRETS
from holdfast.machines.joining import Joiner
from holdfast.machines.ssh_joiner import JoinTiming
from holdfast.providers.gcp.credentials import parse_service_account
from holdfast.providers.gcp.http import HttpRequest, HttpResponse
from holdfast.providers.gcp.provider import connect
from holdfast.providers.protocol import Provider
from tests.machines.attached import AttachedMachines
from tests.machines.controller.dying import Process
from tests.machines.controller.lab import MachineLab, now
from tests.machines.join_bench import JoinBench, join_bench
from tests.providers.compute_engine.double import PROJECT, ComputeEngine
from tests.providers.compute_engine.server import InProcess
from tests.providers.gcp.lab import IMAGE

TEMPLATE = {
    "vmImage": IMAGE,
    "gpu": {"type": "nvidia-tesla-t4", "count": 1},
    "gcp": {"project": PROJECT, "zone": "us-central1-a", "machineType": "n1-standard-4"},
    "zones": ["us-central1-b"],
}
LISTS = "aggregated"


class DyingHttp(InProcess):
    """The calls of one process. The poller's lists come at any time, and change nothing: they are no steps."""

    def __init__(self, cloud: ComputeEngine, process: Process) -> None:
        super().__init__(cloud)
        self._process = process

    async def send(self, request: HttpRequest) -> HttpResponse:
        step = f"{request.method} {request.url.rpartition('/compute/v1/')[2].partition('?')[0] or 'token'}"
        if LISTS in step or self._process.has_died:
            return await super().send(request)
        self._process.before(step)
        answer = await super().send(request)
        self._process.after(step)
        return answer


class WholeLab(MachineLab):
    def __init__(self, bench: JoinBench) -> None:
        super().__init__(bench.embedded)
        self.bench = bench
        self.engine = ComputeEngine(now=now, addresses=lambda number: (bench.machines.address(), ""))
        self.account = self.engine.add_account()
        self.attached = AttachedMachines(self.engine, bench.cluster, bench.machines, ca_cert_hashes=(bench.ca_hash,))
        self.connect = self._connect
        self.process = Process()

    def start(self, process: Process | None = None, **options: Any) -> None:
        self.process = process or Process()
        super().start(self.process, **options)

    def new_joiner(self, cluster: Cluster) -> Joiner:
        return self.bench.new_joiner(cluster, timing=JoinTiming())

    async def template(self, name: str = "t4", **spec: Any) -> Any:
        return await super().template(name, **{**TEMPLATE, **spec})

    async def secret(self, name: str = "gcp", content: str = "") -> None:
        await super().secret(name, content or self.account.key_file().decode())

    @property
    def tokens(self) -> Any:
        return self.cluster.list(SECRETS, namespace="kube-system")

    def _connect(self, project: str, credential: bytes | None) -> Provider:
        return connect(
            project,
            parse_service_account(credential) if credential is not None else None,
            now=now,
            random=Random(0),
            require_leadership=lambda: None,
            endpoint=self.engine.endpoint,
            http=DyingHttp(self.engine, self.process),
        )


@asynccontextmanager
async def whole_lab(*, running: bool = True) -> AsyncIterator[WholeLab]:
    async with join_bench() as bench:
        lab = WholeLab(bench)
        await lab.prepare()
        if running:
            lab.start()
        try:
            yield lab
        finally:
            await lab.stop()
            await lab.engine.close()
