"""SpotInstanceJobs whose machines are taken back, on a real API server: python -m bench.spot [JOBS] [TRIES] [AT_ONCE]

Google is the double of Compute Engine, in this process, on the loopback address; its machines join by themselves as
nodes of kwok. Printed are multiples of what is plain in the same run: a create of a bare object and one round trip to
the double. First what settled jobs cost, with two jobs and with all of them; then one machine after the other is marked
as a node's agent does at a notice, and then many at once, until the double is asked for the next machine of each.
"""

import asyncio
import base64
import sys
import tempfile
import time
from pathlib import Path
from random import SystemRandom
from typing import Any

import aiohttp

from bench.gpuworkloads import create_s, told
from bench.many_jobs import memory_mb, say
from bench.restart import percentile
from holdfast.api.provisionedinstance import INSTANCE_LABEL, SPOT_NODE_LABEL
from holdfast.cluster.kubernetes.client import connect
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.pods.failure import PREEMPTED
from holdfast.providers.gcp.endpoint import ENVIRONMENT
from holdfast.runtime.process import utc_now
from holdfast.times import format_time
from tests.control_plane.api import STRATEGIC, Api, Session
from tests.control_plane.build import build
from tests.control_plane.nodes import FAKE
from tests.control_plane.server import ControlPlane
from tests.machines import cluster_info
from tests.operator.conftest import install_kinds
from tests.operator.process import OperatorProcess
from tests.providers.compute_engine.calls import RecordedCall
from tests.providers.compute_engine.double import PROJECT, ComputeEngine
from tests.providers.compute_engine.machine import QUICK, FakeMachine
from tests.providers.compute_engine.server import serving
from tests.providers.gcp.lab import IMAGE

KINDS = "/apis/training.training.dcnlab.com/v1alpha1/namespaces/default"
NODES, SECRETS = "/api/v1/nodes", "/api/v1/namespaces/default/secrets"
FEW = 2
SETTLED_S, PATIENCE_S, PAUSE_S = 60.0, 900.0, 2.0
ROOM = {"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "1"}


def template() -> dict[str, Any]:
    spec = {
        "vmImage": IMAGE,
        "gpu": {"type": "nvidia-tesla-t4", "count": 1},
        "gcp": {"project": PROJECT, "zone": "us-central1-a", "machineType": "n1-standard-4"},
    }
    return {"apiVersion": "training.training.dcnlab.com/v1alpha1", "kind": "SpotInstanceVM", "spec": spec}


def job(number: int) -> dict[str, Any]:
    container = {"name": "main", "image": "train", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    spec = {
        "replicas": 2,
        "jobTemplate": {"spec": {"template": {"spec": {"containers": [container]}}}},
        "checkpointConfig": {"checkpointImageRepo": "registry.example.com/checkpoints", "checkpointInterval": "6h"},
        "spotInstanceVMRef": {"name": "t4"},
        "gcpCredentialsSecretRef": {"name": "gcp"},
    }
    return {
        "apiVersion": "training.training.dcnlab.com/v1alpha1",
        "kind": "SpotInstanceJob",
        "metadata": {"name": f"job-{number}"},
        "spec": spec,
    }


class Google:
    """The double, and when it was asked for machines."""

    def __init__(self, api: Api) -> None:
        self.cloud = ComputeEngine(now=utc_now, pace=QUICK)
        self.cloud.checks_answers = False
        self.cloud.hooks.on_running = self._join
        self.cloud.before_call = self._note
        self._api = api
        self.inserts: list[float] = []
        self._news = asyncio.Condition()

    async def inserted(self, count: int) -> None:
        async with self._news:
            await self._news.wait_for(lambda: len(self.inserts) >= count)

    async def _note(self, call: RecordedCall) -> None:
        if call.method == "instances.insert":
            async with self._news:
                self.inserts.append(time.perf_counter())
                self._news.notify_all()

    async def _join(self, machine: FakeMachine) -> None:
        labels = {
            FAKE: "true",
            "kubernetes.io/hostname": machine.name,
            SPOT_NODE_LABEL: "true",
            INSTANCE_LABEL: machine.name.removeprefix("holdfast-"),
        }
        body = {"metadata": {"name": machine.name, "labels": labels}, "status": {"capacity": ROOM, "allocatable": ROOM}}
        await self._api.request("POST", NODES, body)


async def running(session: Session, jobs: int) -> None:
    """All replicas run."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        listing = await session.request("GET", f"{KINDS}/spotinstancejobs")
        found = [each.get("status", {}) for each in listing["items"]]
        if sum(each.get("activeReplicas", 0) for each in found) == 2 * jobs:
            return
        await asyncio.sleep(1)
    sys.exit(f"after {PATIENCE_S:g} s not all replicas run: {[each.get('message') for each in found]}")


async def submit(session: Session, numbers: range) -> None:
    await asyncio.gather(*(session.request("POST", f"{KINDS}/spotinstancejobs", job(number)) for number in numbers))


async def settled(plane: ControlPlane, operator: OperatorProcess, google: Google) -> tuple[int, int]:
    """Cluster writes, and calls of the cloud, of a minute in which nothing happens."""
    await asyncio.sleep(20)
    since, calls = plane.audit_position(), len(google.cloud.calls)
    await asyncio.sleep(SETTLED_S)
    return len(operator.writes(since)), len(google.cloud.calls) - calls


async def mark(session: Session, node: str) -> float:
    """As the node's agent does; when the API server has taken it."""
    moment = format_time(utc_now())
    condition = {"type": PREEMPTED, "status": "True", "lastTransitionTime": moment, "message": "taken back"}
    body = {"status": {"conditions": [condition]}}
    await session.request("PATCH", f"{NODES}/{node}/status", body, content_type=STRATEGIC)
    return time.perf_counter()


async def round_trip_s(google: Google, http: aiohttp.ClientSession) -> float:
    """Of a call that the double need not think about."""
    began = time.perf_counter()
    async with http.get(f"{google.cloud.origin}/compute/v1/projects/{PROJECT}/zones") as response:
        await response.read()
    return time.perf_counter() - began


async def single_s(session: Session, google: Google, node: str) -> float:
    before = len(google.inserts)
    marked = await mark(session, node)
    await google.inserted(before + 1)
    return google.inserts[before] - marked


async def at_once_s(session: Session, google: Google, nodes: list[str]) -> float:
    before, began = len(google.inserts), time.perf_counter()
    await asyncio.gather(*(mark(session, node) for node in nodes))
    await google.inserted(before + len(nodes))
    return google.inserts[before + len(nodes) - 1] - began


async def measure(plane: ControlPlane, google: Google, operator: OperatorProcess, sizes: tuple[int, int, int]) -> None:
    jobs, tries, at_once = sizes
    async with plane.api.session() as session, aiohttp.ClientSession() as http:
        await session.request("POST", SECRETS, secret(google.cloud))
        await session.request("POST", f"{KINDS}/spotinstancevms", {**template(), "metadata": {"name": "t4"}})
        memory, costs = [], []
        for numbers in (range(FEW), range(FEW, jobs)):
            await submit(session, numbers)
            await running(session, numbers.stop)
            costs.append(await settled(plane, operator, google))
            memory.append(memory_mb(operator, "VmRSS"))
        say(f"A minute of {FEW} settled jobs, and of {jobs}:")
        say(f"  cluster writes             {costs[0][0]:6}   {costs[1][0]:6}")
        say(f"  calls of the cloud         {costs[0][1]:6}   {costs[1][1]:6}")
        say(f"  operator memory            {1:6}   {memory[1] / memory[0]:6.2f}")
        nodes = [machine.name for machine in google.cloud.machines.values()]
        bare, alone = [], []
        for number, node in enumerate(nodes[:tries]):
            bare.append(await create_s(session, number) + await round_trip_s(google, http))
            alone.append(await single_s(session, google, node))
            await asyncio.sleep(PAUSE_S)  # the next machine joins meanwhile
        unit_s = percentile(bare, 0.5)
        say("From the mark of a Node to the call for the next machine, in bare creates and round trips to the double:")
        say(told("bare, one by one", bare, unit_s))
        say(told("machines, one by one", alone, unit_s))
        began = time.perf_counter()
        await asyncio.gather(*(create_s(session, tries + number) for number in range(2 * at_once)))
        creates_s = time.perf_counter() - began
        last_s = await at_once_s(session, google, nodes[tries : tries + at_once])
        say(f"  the last of {at_once} at once: {last_s / creates_s:.1f} times {2 * at_once} bare creates at once")


def secret(cloud: ComputeEngine) -> dict[str, Any]:
    content = base64.b64encode(cloud.add_account().key_file()).decode()
    return {"metadata": {"name": "gcp"}, "data": {"credentials.json": content}}


async def publish(plane: ControlPlane) -> None:
    """What tells machines how to join."""
    admin = connect(load_config(str(plane.kubeconfig), environ={}), rng=SystemRandom(), now=utc_now)
    await cluster_info.publish(admin, cluster_info.authority())
    await admin.close()


async def run(jobs: int, tries: int, at_once: int) -> None:
    if tries + at_once > 2 * jobs:
        sys.exit(f"{jobs} jobs have {2 * jobs} machines: no more can be taken back")
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        ControlPlane(Path(folder) / "plane", build(sys.stdout)).running() as plane,
    ):
        install_kinds(plane)
        await publish(plane)
        google = Google(plane.api)
        async with serving(google.cloud) as endpoint:
            operator = OperatorProcess(plane, Path(folder), "--no-leader-elect", environment={ENVIRONMENT: endpoint})
            await asyncio.to_thread(operator.start)
            try:
                await measure(plane, google, operator, (jobs, tries, at_once))
            finally:
                await asyncio.to_thread(operator.stop)
        await google.cloud.close()


if __name__ == "__main__":
    asyncio.run(run(*map(int, (*sys.argv[1:4], *("200", "100", "100")[len(sys.argv[1:4]) :]))))
