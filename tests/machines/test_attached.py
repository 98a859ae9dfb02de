"""A machine of the double, from the insert to its Node, and to the end of its power."""

import asyncio

import pytest
from msgspec import structs

from holdfast.machines.joining import JoinFailed, JoinRequest, JoinStep
from holdfast.providers.errors import MachineNotFound
from holdfast.providers.protocol import Machine
from tests.machines.attached import AttachedMachines
from tests.machines.join_bench import JoinBench, join_bench
from tests.machines.light_machine import Fault
from tests.providers.compute_engine.double import PROJECT, ComputeEngine
from tests.providers.gcp.lab import Lab, now, spec
from tests.runtime.virtual import virtual


class AttachedBench:
    def __init__(self, bench: JoinBench) -> None:
        self.bench = bench
        self.cloud = ComputeEngine(now=now, addresses=lambda number: (bench.machines.address(), ""))
        self.attached = AttachedMachines(self.cloud, bench.cluster, bench.machines, ca_cert_hashes=(bench.ca_hash,))
        self.lab = Lab(self.cloud, self.cloud.add_account())
        self.provider = self.lab.provider()
        self.target = structs.replace(bench.target, project=PROJECT, zone="us-central1-a")

    async def launch(self) -> Machine:
        metadata = await self.bench.joiner.metadata(self.target)
        return await self.provider.launch(spec(name=self.target.node_name, uid=self.target.uid, metadata=metadata))

    async def join(self, machine: Machine) -> None:
        request = JoinRequest(target=self.target, addresses=(machine.external_ip, machine.internal_ip))
        await self.bench.joiner.join(request, self.provider, self.bench.progress.append)


@virtual
async def test_a_machine_of_the_cloud_becomes_a_node_with_its_gpus() -> None:
    async with join_bench() as bench:
        it = AttachedBench(bench)

        await it.join(await it.launch())

        bench.target = it.target
        assert (await bench.node()).status.allocatable["nvidia.com/gpu"] == "1"
        assert bench.steps[0] == JoinStep.HOST_KEY
        await it.cloud.close()


@virtual
async def test_faults_are_of_the_next_machine_alone() -> None:
    async with join_bench() as bench:
        it = AttachedBench(bench)
        it.attached.faults.append({Fault.NO_KUBEADM})
        with pytest.raises(JoinFailed):
            await it.join(await it.launch())
        await it.provider.delete(it.target.zone, it.target.node_name, it.target.uid)
        it.target = structs.replace(it.target, uid="1-2-3", node_name="holdfast-1-2-3")

        await it.join(await it.launch())

        await it.cloud.close()


@virtual
async def test_a_machine_that_is_taken_back_falls_silent() -> None:
    async with join_bench() as bench:
        it = AttachedBench(bench)
        await it.join(await it.launch())

        it.cloud.preempt(it.cloud.machine(it.target.node_name))
        await asyncio.sleep(600)

        bench.target = it.target
        assert not (await bench.node()).is_ready
        assert it.target.node_name not in bench.machines.by_name
        with pytest.raises(MachineNotFound):
            await it.provider.get(it.target.zone, it.target.node_name)
        await it.cloud.close()


@pytest.mark.parametrize(
    ("fault", "ready", "gpus"), [(Fault.NEVER_READY, False, "1"), (Fault.NO_GPU, True, ""), (None, True, "1")]
)
def test_a_node_may_be_there_and_not_be_of_use(fault: Fault | None, ready: bool, gpus: str) -> None:
    @virtual
    async def look() -> None:
        async with join_bench() as bench:
            it = AttachedBench(bench)
            it.attached.faults.append({fault} if fault else set())

            await it.join(await it.launch())

            bench.target = it.target
            node = await bench.node()
            assert node.is_ready == ready
            assert node.status.allocatable.get("nvidia.com/gpu", "") == gpus
            await it.cloud.close()

    look()
