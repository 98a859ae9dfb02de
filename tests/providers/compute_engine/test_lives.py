"""Machines come and go as on Compute Engine, in their order and with all who look on."""

import asyncio

import pytest

from holdfast.providers.gcp.operations import PREEMPTED
from tests.providers.compute_engine.client import Client, client
from tests.providers.compute_engine.double import ComputeEngine
from tests.providers.compute_engine.lives import HOST_ERROR, RUN_LIMIT
from tests.providers.compute_engine.machine import FakeMachine
from tests.providers.gcp.lab import NAME, SPEC, ZONE, another, now, spec
from tests.runtime.virtual import now_s, virtual


class Witness:
    """What happens to machines, and when."""

    def __init__(self, it: Client) -> None:
        self.began_s = now_s()
        self.seen: list[tuple[str, float]] = []
        hooks = it.cloud.hooks
        hooks.on_running = lambda machine: self.note("running")
        hooks.on_warned = lambda machine: self.note("warned")
        hooks.on_soft_off = lambda machine: self.note("soft off")
        hooks.on_power_off = lambda machine: self.note("power off")

    def note(self, what: str) -> None:
        self.seen.append((what, now_s() - self.began_s))


def system_operations(it: Client) -> list[str]:
    return [operation.kind for operation in it.cloud.operations.values() if operation.user == "system"]


@pytest.mark.parametrize("notice_s", [None, 120])
def test_a_preemption(notice_s: int | None) -> None:
    @virtual
    async def run() -> None:
        async with client() as it:
            machine = await it.machine(spec(preemption_notice_s=notice_s))
            witness, pace, notice = Witness(it), it.cloud.pace, notice_s or 0
            it.cloud.preempt(machine)
            assert machine.preempted
            await asyncio.sleep(notice + pace.soft_off_s + 1)
            assert witness.seen == [
                ("warned", 0.0),
                ("soft off", notice),
                ("power off", notice + pace.soft_off_s),
            ]
            assert (machine.status, machine.power) == ("RUNNING", "off"), "it is seen running for a while"
            assert not system_operations(it)
            await asyncio.sleep(pace.seen_running_s)
            assert system_operations(it) == [PREEMPTED]
            assert machine.status == "STOPPING"
            await asyncio.sleep(pace.fade_s)
            assert machine.gone.is_set()
            assert not it.cloud.machines

    run()


@virtual
async def test_it_is_seen_running_for_less_than_a_minute() -> None:
    async with client() as it:
        assert 0 < it.cloud.pace.seen_running_s <= 60


@virtual
async def test_a_preemption_of_a_machine_that_is_being_made() -> None:
    async with client() as it:
        operation = await it.insert()
        it.cloud.preempt(it.cloud.machine(NAME))
        done = await it.wait(operation)
        assert done.content["error"]["errors"] == [
            {"code": "UNSUPPORTED_OPERATION", "message": "Instance failed to start due to preemption."}
        ]
        assert not it.cloud.machines
        assert system_operations(it) == [PREEMPTED]


@virtual
async def test_a_preemption_of_a_machine_that_has_not_booted() -> None:
    async with client() as it:
        operation = await it.insert()
        await it.wait(operation)
        machine, witness = it.cloud.machine(NAME), Witness(it)
        it.cloud.preempt(machine)
        await machine.gone.wait()
        assert "power off" in [what for what, _ in witness.seen], "it has booted meanwhile"


@virtual
async def test_a_preemption_happens_once() -> None:
    async with client() as it:
        machine, witness = await it.machine(), Witness(it)
        it.cloud.preempt(machine)
        it.cloud.preempt(machine)
        await machine.gone.wait()
        assert [what for what, _ in witness.seen] == ["warned", "soft off", "power off"]


@virtual
async def test_a_deletion_amid_a_preemption_ends_it_sooner() -> None:
    async with client() as it:
        machine, witness = await it.machine(), Witness(it)
        it.cloud.preempt(machine)
        operation = await it.ask("DELETE", f"zones/{ZONE}/instances/{NAME}")
        assert (await it.wait(operation)).content["status"] == "DONE"
        assert machine.gone.is_set()
        await asyncio.sleep(200)
        assert [what for what, _ in witness.seen].count("power off") == 1


@virtual
async def test_a_deletion_turns_the_power_off_at_once() -> None:
    async with client() as it:
        machine, witness = await it.machine(), Witness(it)
        await it.ask("DELETE", f"zones/{ZONE}/instances/{NAME}")
        await machine.gone.wait()
        assert witness.seen == [("power off", 0.0)]


@virtual
async def test_a_run_that_is_limited() -> None:
    async with client() as it:
        machine = await it.machine(spec(max_run_duration_s=600))
        began_s = now_s()
        await machine.gone.wait()
        assert now_s() - began_s == 600 + it.cloud.pace.delete_s
        assert system_operations(it) == [RUN_LIMIT]


@virtual
async def test_a_host_that_breaks() -> None:
    async with client() as it:
        machine, witness = await it.machine(), Witness(it)
        it.cloud.fail_host(machine)
        await asyncio.sleep(1.0)
        assert machine.status == "TERMINATED"
        assert system_operations(it) == [HOST_ERROR]
        assert [what for what, _ in witness.seen] == ["power off"]


@virtual
async def test_a_maintenance_of_a_spot_machine_is_a_preemption() -> None:
    async with client() as it:
        machine = await it.machine()
        on_demand = await it.machine(another(2, preemptible=False))
        for one in (machine, on_demand):
            path = f"zones/{ZONE}/instances/{one.name}/simulateMaintenanceEvent"
            assert (await it.ask("POST", path)).status == 200
        assert machine.preempted
        assert not on_demand.preempted


@virtual
async def test_hooks_are_awaited_and_their_errors_fail_the_test() -> None:
    async with client() as it:
        done: list[str] = []

        async def boot(machine: FakeMachine) -> None:
            await asyncio.sleep(3.0)
            done.append(machine.name)

        it.cloud.hooks.on_running = boot
        machine = await it.machine()
        assert machine.status == "RUNNING"
        assert not done
        await asyncio.sleep(3.0)
        assert done == [NAME]

        async def fail(machine: FakeMachine) -> None:
            raise RuntimeError("the light machine did not start")

        it.cloud.hooks.on_running = fail
        await it.machine(another(2))
        with pytest.raises(RuntimeError, match="did not start"):
            await it.cloud.close()
        it.cloud.hooks.on_running = boot


@virtual
async def test_addresses_are_the_tests_own_choice() -> None:
    cloud = ComputeEngine(now=now, addresses=lambda number: (f"127.1.0.{number + 1}", f"127.2.0.{number + 1}"))
    it = Client(cloud, cloud.add_account())
    await it.machine(SPEC)
    machine = await it.machine(another(2))
    assert (machine.internal_ip, machine.external_ip) == ("127.1.0.2", "127.2.0.2")
    without = await it.machine(another(3, external_ip=False))
    assert without.external_ip == ""
    await cloud.close()
