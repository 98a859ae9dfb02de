"""list, get, zones, is_preempted and host_keys."""

import asyncio

import msgspec
import pytest
import structlog

from holdfast.providers.errors import MachineEnded, MachineNotFound, ProviderError
from holdfast.providers.gcp.http import HttpRequest, HttpResponse
from holdfast.providers.protocol import MachineList
from tests.providers.compute_engine.refusals import preempted_while_starting
from tests.providers.compute_engine.server import InProcess
from tests.providers.gcp.lab import CLUSTER, NAME, SPEC, ZONE, Lab, another, lab
from tests.runtime.virtual import virtual

OTHER_CLUSTER = "c1a5de00-0000-4000-8000-000000000002"


async def launch(it: Lab, count: int) -> None:
    provider = it.provider()
    await asyncio.gather(*(provider.launch(another(number)) for number in range(count)))


def names(found: MachineList) -> list[str]:
    return sorted(machine.name for machine in found.machines)


@virtual
async def test_the_machines_of_one_cluster_in_all_zones() -> None:
    async with lab() as it:
        provider = it.provider()
        for number, zone in enumerate(("us-central1-a", "us-central1-b", "europe-west4-a")):
            await provider.launch(another(number, zone=zone))
        await provider.launch(another(9, cluster_uid=OTHER_CLUSTER))
        found = await provider.list(CLUSTER)
        assert names(found) == [another(number).name for number in range(3)]
        assert {machine.zone for machine in found.machines} == {"us-central1-a", "us-central1-b", "europe-west4-a"}
        assert not found.unreachable
        assert all(machine.uid and machine.id and machine.internal_ip and machine.state for machine in found.machines)
        assert names(await provider.list(OTHER_CLUSTER)) == [another(9).name]
        assert it.cloud.count("instances.aggregatedList") == 2


@virtual
async def test_all_pages_are_read() -> None:
    async with lab() as it:
        await launch(it, 7)
        it.cloud.page_size = 3
        assert names(await it.provider().list(CLUSTER)) == [another(number).name for number in range(7)]
        assert it.cloud.count("instances.aggregatedList") == 3


@virtual
async def test_a_page_has_500_machines() -> None:
    async with lab() as it:
        await launch(it, 501)
        assert len((await it.provider().list(CLUSTER)).machines) == 501
        assert it.cloud.count("instances.aggregatedList") == 2


@virtual
async def test_zones_that_do_not_answer_are_named() -> None:
    async with lab() as it:
        provider = it.provider()
        await provider.launch(SPEC)
        await provider.launch(another(2, zone="europe-west4-a"))
        it.cloud.unreachable.add(ZONE)
        found = await provider.list(CLUSTER)
        assert found.unreachable == {ZONE}
        assert names(found) == [another(2).name]


@pytest.mark.parametrize("told", ["unreachables", "warning"])
def test_one_word_of_a_silent_zone_is_enough(told: str) -> None:
    @virtual
    async def run() -> None:
        async with lab() as it:
            it.cloud.unreachable.add(ZONE)

            class Half(InProcess):
                """Google's answers with one of the two marks."""

                async def send(self, request: HttpRequest) -> HttpResponse:
                    response = await super().send(request)
                    content = msgspec.json.decode(response.body)
                    if told == "unreachables":
                        content.get("items", {}).pop(f"zones/{ZONE}", None)
                    else:
                        content.pop("unreachables", None)
                    return msgspec.structs.replace(response, body=msgspec.json.encode(content))

            found = await it.provider(http=Half(it.cloud)).list(CLUSTER)
            assert found.unreachable == {ZONE}

    run()


@virtual
async def test_an_empty_project() -> None:
    async with lab() as it:
        assert await it.provider().list(CLUSTER) == MachineList()


@virtual
async def test_a_machine_is_listed_while_it_is_deleted() -> None:
    async with lab() as it:
        await launch(it, 1)
        provider = it.provider()
        deleting = asyncio.create_task(provider.delete(ZONE, another(0).name, another(0).uid))
        await asyncio.sleep(1.0)
        (machine,) = (await provider.list(CLUSTER)).machines
        assert machine.state == "STOPPING"
        await deleting
        assert not (await provider.list(CLUSTER)).machines


@virtual
async def test_the_scripts_of_machines_are_not_fetched_with_the_list() -> None:
    async with lab() as it:
        await it.provider().launch(another(1, metadata={"startup-script": "x" * 100_000}))
        sizes: list[int] = []

        class Measuring(InProcess):
            async def send(self, request: HttpRequest) -> HttpResponse:
                response = await super().send(request)
                sizes.append(len(response.body))
                return response

        await it.provider(http=Measuring(it.cloud)).list(CLUSTER)
        assert max(sizes) < 5_000


@virtual
async def test_a_machine_by_name() -> None:
    async with lab() as it:
        provider = it.provider()
        launched = await provider.launch(SPEC)
        await asyncio.sleep(it.cloud.pace.start_s + 1)
        machine = await provider.get(ZONE, NAME)
        assert (machine.id, machine.state) == (launched.id, "RUNNING")
        with pytest.raises(MachineNotFound, match=f"can't look at machine m in {ZONE}"):
            await provider.get(ZONE, "m")


@virtual
async def test_a_state_that_is_not_known_changes_nothing_and_is_logged_once() -> None:
    async with lab() as it:
        await it.provider().launch(SPEC)
        it.cloud.checks_answers = False
        it.cloud.machine(NAME).status = "LEVITATING"
        provider = it.provider()
        with structlog.testing.capture_logs() as logs:
            assert (await provider.get(ZONE, NAME)).state is None
            assert [machine.state for machine in (await provider.list(CLUSTER)).machines] == [None]
        assert [(line["event"], line["state"]) for line in logs] == [
            ("machine in a state that is not known", "LEVITATING")
        ]
        it.cloud.machine(NAME).status = "RUNNING"


@virtual
async def test_the_zones_that_are_up() -> None:
    async with lab() as it:
        provider = it.provider()
        it.cloud.zones_down.add("us-central1-b")
        assert await provider.zones("us-central1") == ("us-central1-a", "us-central1-c", "us-central1-f")
        assert await provider.zones("us-central") == ()
        assert len(await provider.zones()) == 9
        it.cloud.page_size = 2
        assert len(await provider.zones()) == 9


@virtual
async def test_a_preemption_is_distinguished_from_every_other_end() -> None:
    async with lab() as it:
        provider = it.provider()
        machines = [await provider.launch(another(number)) for number in range(4)]
        one, two, three, four = (it.cloud.machine(machine.name) for machine in machines)
        it.cloud.preempt(one)
        it.cloud.delete_by_hand(two)
        it.cloud.fail_host(three)
        await one.gone.wait()
        await two.gone.wait()
        told = [await provider.is_preempted(ZONE, machine.name, machine.id) for machine in machines]
        assert told == [True, False, False, False]
        assert four.status == "RUNNING"


@virtual
async def test_a_machine_that_was_not_started_for_that_reason_was_preempted_too() -> None:
    async with lab() as it:
        it.cloud.faults.fail_operation("insert", preempted_while_starting())
        provider = it.provider()
        with pytest.raises(MachineEnded):
            await provider.launch(SPEC)
        assert await provider.is_preempted(ZONE, NAME, "")


@virtual
async def test_a_run_that_was_limited_is_no_preemption() -> None:
    async with lab() as it:
        provider = it.provider()
        machine = await provider.launch(another(1, max_run_duration_s=600))
        await it.cloud.machine(machine.name).gone.wait()
        assert not await provider.is_preempted(ZONE, machine.name, machine.id)


@virtual
async def test_an_older_machine_of_the_name_does_not_count() -> None:
    async with lab() as it:
        provider = it.provider()
        machine = await provider.launch(SPEC)
        it.cloud.preempt(it.cloud.machine(NAME))
        await it.cloud.machine(NAME).gone.wait()
        assert await provider.is_preempted(ZONE, NAME, machine.id)
        assert not await provider.is_preempted(ZONE, NAME, "1")


@virtual
async def test_the_host_keys_that_a_machine_has_published() -> None:
    async with lab() as it:
        provider = it.provider()
        assert await provider.host_keys(ZONE, NAME) == ()
        await provider.launch(SPEC)
        assert await provider.host_keys(ZONE, NAME) == ()
        machine = it.cloud.machine(NAME)
        machine.publish_host_key("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIDsw\n")
        machine.publish_host_key("ecdsa-sha2-nistp256", "AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAA")
        machine.write_guest_attribute("other", "key", "value")
        assert await provider.host_keys(ZONE, NAME) == (
            "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAA",
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDsw",
        )


@pytest.mark.parametrize(
    "metadata", [{}, {"enable-guest-attributes": "TRUE", "enable-oslogin": "TRUE"}, {"enable-oslogin": "FALSE"}]
)
def test_a_machine_that_may_publish_no_host_key_has_none(metadata: dict[str, str]) -> None:
    @virtual
    async def run() -> None:
        async with lab() as it:
            provider = it.provider()
            machine = await provider.launch(another(1, metadata=metadata))
            it.cloud.machine(machine.name).publish_host_key("ssh-ed25519", "AAAA")
            assert await provider.host_keys(ZONE, machine.name) == ()

    run()


@virtual
async def test_a_drill() -> None:
    async with lab() as it:
        provider = it.provider()
        machine = await provider.launch(SPEC)
        with pytest.raises(ProviderError, match="is not ready"):
            await provider.simulate_preemption(ZONE, NAME)
        await asyncio.sleep(10.0)
        await provider.simulate_preemption(ZONE, NAME)
        await it.cloud.made[0].gone.wait()
        assert await provider.is_preempted(ZONE, NAME, machine.id)
