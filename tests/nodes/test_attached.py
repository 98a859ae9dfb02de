"""A machine of the double of Compute Engine is a real one: from the insert to its Node, and to the end of its power."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from random import Random

import pytest

from holdfast.machines.joining import JoinRequest, JoinTarget
from holdfast.machines.ssh_joiner import JoinTiming, SshJoiner
from holdfast.machines.ssh_keys import RootKey
from holdfast.providers.gcp.credentials import parse_service_account
from holdfast.providers.gcp.provider import GcpProvider, connect
from holdfast.runtime.process import utc_now
from holdfast.runtime.secrets import SecretReader
from tests.control_plane.waiting import eventually
from tests.nodes.attached import AttachedComputers, addresses_in
from tests.nodes.lab import Lab
from tests.nodes.settings import QUICK
from tests.operator.user import kubectl
from tests.providers.compute_engine.double import PROJECT, ComputeEngine
from tests.providers.compute_engine.machine import QUICK as QUICK_CLOUD
from tests.providers.compute_engine.server import InProcess
from tests.providers.gcp.lab import spec

pytestmark = pytest.mark.timeout(900)

UID = "0c5f5f9a-8f0b-4c57-9d3e-6f1d2a3b4c5d"
NAME = f"holdfast-{UID}"
ZONE = "us-central1-a"


@pytest.fixture(scope="module")
def lab(joining: None) -> Iterator[Lab]:
    with Lab(pace=QUICK, computers=1).running() as lab:
        yield lab


@pytest.fixture
async def cloud(lab: Lab) -> AsyncIterator[ComputeEngine]:
    cloud = ComputeEngine(now=utc_now, pace=QUICK_CLOUD, addresses=addresses_in(lab))
    attached = AttachedComputers(cloud, lab)
    yield cloud
    await attached.close()
    await cloud.close()


def provider_of(cloud: ComputeEngine) -> GcpProvider:
    return connect(
        PROJECT,
        parse_service_account(cloud.add_account().key_file()),
        now=utc_now,
        random=Random(0),
        require_leadership=lambda: None,
        endpoint=cloud.endpoint,
        http=InProcess(cloud),
    )


async def test_a_machine_joins_with_its_gpus_and_is_taken_back(lab: Lab, cloud: ComputeEngine) -> None:
    provider = provider_of(cloud)
    target = JoinTarget(uid=UID, namespace="default", node_name=NAME, project=PROJECT, zone=ZONE)
    async with lab.cluster() as cluster:
        joiner = SshJoiner(
            cluster,
            secrets=SecretReader(cluster, operator_account="default:operator"),
            root_key=RootKey(cluster, "default", bytes),
            now=utc_now,
            timing=JoinTiming(step_s=240, first_pause_s=0.2, longest_pause_s=1),
        )
        machine = await provider.launch(spec(name=NAME, uid=UID, metadata=await joiner.metadata(target)))
        request = JoinRequest(target=target, addresses=(machine.external_ip, machine.internal_ip))
        await joiner.join(request, provider, lambda progress: None)

    async def gpus() -> str:
        shown = r"--output=jsonpath={.status.allocatable.nvidia\.com/gpu}"
        return await kubectl(lab.plane, "get", "node", NAME, shown)

    async def ready() -> str:
        shown = r'--output=jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        return await kubectl(lab.plane, "get", "node", NAME, shown)

    await eventually(gpus, lambda count: count == "1", what="the node offers its GPU")
    cloud.preempt(cloud.machine(NAME))
    await eventually(ready, lambda status: status == "Unknown", what="the node is silent")
    await eventually(lambda: asyncio.sleep(0, dict(cloud.machines)), lambda seen: not seen, what="the machine is gone")
    await provider.close()
