"""Machines on this computer: made once, found again, ended for sure, whatever happens in between."""

import asyncio
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.providers.errors import InvalidMachine, MachineEnded, MachineNotFound, ProviderError, Stockout
from holdfast.providers.local.provider import SpotMarket
from holdfast.providers.local.state import REMEMBERED, MachineTable, StateUnreadable
from holdfast.providers.local.trace import parse_trace
from holdfast.providers.protocol import Provider
from tests.providers.local.nodes import CLUSTER, ScriptedNodes, after, names, now, provider, spec
from tests.runtime.virtual import virtual

ZONE = "us-central1-a"


@virtual
async def test_a_machine_is_made_listed_and_deleted(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    async with provider(tmp_path, nodes) as local:
        cloud: Provider = local
        made = await cloud.launch(spec("m1", gpu_type="nvidia-l4", gpu_count=2))
        assert (made.name, made.zone, made.state, made.uid) == ("m1", ZONE, "RUNNING", "uid-of-m1")
        assert made.created_at == now()
        assert await cloud.get(ZONE, "m1") == made
        assert (await cloud.list(CLUSTER)).machines == (made,)
        assert (await cloud.list("another cluster")).machines == ()
        assert (nodes.running["m1"].gpu_type, nodes.running["m1"].gpu_count) == ("nvidia-l4", 2)
        await cloud.delete(ZONE, "m1", "uid-of-m1")
        assert nodes.running == {}
        with pytest.raises(MachineNotFound, match="no machine m1 in zone us-central1-a"):
            await cloud.get(ZONE, "m1")
        assert await names(local) == []
        assert not await cloud.is_preempted(ZONE, "m1", made.id)
        assert await cloud.host_keys(ZONE, "m1") == ()


@virtual
async def test_a_repeated_launch_finds_the_first_machine(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    async with provider(tmp_path, nodes) as local:
        first, second = await asyncio.gather(local.launch(spec()), local.launch(spec()))
        assert first == second == await local.launch(spec())
        assert nodes.calls == ["start m1"]


@virtual
async def test_a_launch_after_the_end_says_how_it_ended_and_makes_no_second_machine(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    async with provider(tmp_path, nodes) as local:
        for name in ("deleted", "preempted"):
            await local.launch(spec(name))
        await local.delete(ZONE, "deleted", "uid-of-deleted")
        await local.preempt("preempted", notice_s=0)
        await asyncio.sleep(1)
    async with provider(tmp_path, nodes) as local:
        for name, preempted in {"deleted": False, "preempted": True}.items():
            with pytest.raises(MachineEnded, match=f"machine {name} was made and") as ended:
                await local.launch(spec(name))
            assert ended.value.preempted is preempted
        assert nodes.running == {}


@virtual
async def test_another_object_or_zone_neither_gets_nor_deletes_the_machine(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    async with provider(tmp_path, nodes) as local:
        await local.launch(spec())
        for other in (spec(zone="us-central1-b"), spec(uid="another")):
            with pytest.raises(InvalidMachine, match="m1 is there already, in zone us-central1-a"):
                await local.launch(other)
        with pytest.raises(InvalidMachine, match="belongs to another object"):
            await local.delete(ZONE, "m1", "another")
        await local.delete("us-central1-b", "m1", "uid-of-m1")
        await local.delete(ZONE, "never-made", "uid")
        assert "m1" in nodes.running


@virtual
async def test_without_the_lease_nothing_is_made_or_deleted(tmp_path: Path) -> None:
    nodes, leads = ScriptedNodes(), True

    def require() -> None:
        if not leads:
            raise HoldfastError("another leads")

    async with provider(tmp_path, nodes, require_leadership=require) as local:
        await local.launch(spec())
        leads = False
        with pytest.raises(HoldfastError, match="another leads"):
            await local.launch(spec("m2"))
        with pytest.raises(HoldfastError, match="another leads"):
            await local.delete(ZONE, "m1", "uid-of-m1")
        assert await names(local) == ["m1"]


@virtual
async def test_a_start_that_fails_is_tried_again_with_the_next_launch(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    nodes.start_errors = [HoldfastError("no room")]
    async with provider(tmp_path, nodes) as local:
        with pytest.raises(ProviderError, match="machine m1 does not start: no room"):
            await local.launch(spec())
        assert (await local.get(ZONE, "m1")).state == "PROVISIONING"
        made = await local.launch(spec())
        assert (made.state, made.id) == ("RUNNING", (await local.get(ZONE, "m1")).id)
        assert len((await local.list(CLUSTER)).machines) == 1


@virtual
async def test_the_next_start_finds_its_machines_and_runs_them_again(tmp_path: Path) -> None:
    before = ScriptedNodes()
    async with provider(tmp_path, before) as local:
        made = await local.launch(spec("m1", gpu_count=1))
        assert (tmp_path / "machines.json").exists()
    after_crash = ScriptedNodes()
    async with provider(tmp_path, after_crash) as local:
        assert after_crash.running == before.running
        assert await local.get(ZONE, "m1") == made
        assert (await local.launch(spec("m2"))).id != made.id


@virtual
async def test_a_crash_before_the_node_runs_leaves_one_machine_that_the_next_launch_finds(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    nodes.start_errors = [HoldfastError("killed here")]
    async with provider(tmp_path, nodes) as local:
        with pytest.raises(ProviderError):
            await local.launch(spec())
    async with provider(tmp_path, nodes) as local:
        assert list(nodes.running) == ["m1"]
        await local.launch(spec())
        assert await names(local) == ["m1"]


@virtual
async def test_a_delete_that_a_crash_broke_off_is_finished_by_the_next_start(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    async with provider(tmp_path, nodes) as local:
        await local.launch(spec())
        nodes.kill_errors = [HoldfastError("a process does not end")]
        with pytest.raises(ProviderError, match="m1 does not end: a process does not end"):
            await local.delete(ZONE, "m1", "uid-of-m1")
        assert (await local.get(ZONE, "m1")).state == "STOPPING"
        with pytest.raises(MachineEnded) as ended:
            await local.preempt("m1")
        assert not ended.value.preempted
    async with provider(tmp_path, nodes) as local:
        assert nodes.calls[-1] == "kill m1"
        assert await names(local) == []


@virtual
async def test_a_machine_that_does_not_start_again_is_gone_and_was_not_preempted(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    async with provider(tmp_path, nodes) as local:
        made = await local.launch(spec())
    nodes.start_errors = [HoldfastError("the disk is full")]
    async with provider(tmp_path, nodes) as local:
        assert await names(local) == []
        assert not await local.is_preempted(ZONE, "m1", made.id)


@virtual
async def test_a_preempted_machine_gets_its_notice_and_then_ends_at_once(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    async with provider(tmp_path, nodes) as local:
        made = await local.launch(spec())
        assert not await local.is_preempted(ZONE, "m1", made.id)
        end = await local.preempt("m1")
        assert end == after(30) == nodes.announced["m1"]
        assert await local.is_preempted(ZONE, "m1", made.id)
        assert not await local.is_preempted(ZONE, "m1", "another one of that name")
        await asyncio.sleep(29)
        assert (await local.get(ZONE, "m1")).state == "RUNNING"
        await asyncio.sleep(2)
        assert nodes.killed_at == {"m1": end}
        assert await names(local) == []
        assert await local.is_preempted(ZONE, "m1", made.id)
        with pytest.raises(MachineEnded):
            await local.preempt("m1")
        with pytest.raises(MachineNotFound):
            await local.preempt("m2")


@virtual
async def test_the_notice_is_the_commands_or_the_templates_or_the_default(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    async with provider(tmp_path, nodes, market=SpotMarket(notice_s=7)) as local:
        for name in ("default", "template", "command"):
            await local.launch(spec(name, preemption_notice_s=None if name == "default" else 120))
        assert await local.preempt("default") == after(7)
        assert await local.preempt("template") == after(120)
        assert await local.preempt("command", notice_s=5) == after(5)


@virtual
async def test_a_preempted_machine_may_end_earlier_but_not_later(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    async with provider(tmp_path, nodes) as local:
        await local.launch(spec())
        first = await local.preempt("m1", notice_s=30)
        await asyncio.sleep(10)
        assert await local.preempt("m1", notice_s=30) == first
        assert nodes.calls.count("announce m1") == 1
        sooner = await local.preempt("m1", notice_s=0)
        assert sooner == now()
        await asyncio.sleep(1)
        assert nodes.killed_at == {"m1": sooner}


@virtual
async def test_without_a_notice_the_node_is_not_marked(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    async with provider(tmp_path, nodes) as local:
        await local.launch(spec())
        await local.preempt("m1", notice_s=0)
        await asyncio.sleep(1)
        assert nodes.announced == {}
        assert nodes.running == {}


@virtual
async def test_a_notice_goes_on_over_a_restart(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    async with provider(tmp_path, nodes) as local:
        for name in ("soon", "due"):
            await local.launch(spec(name))
        await local.preempt("due", notice_s=5)
        end = await local.preempt("soon", notice_s=60)
    await asyncio.sleep(20)
    nodes = ScriptedNodes()
    async with provider(tmp_path, nodes):
        assert nodes.calls == ["kill due", "announce soon", "start soon"]
        assert nodes.announced == {"soon": end}
        await asyncio.sleep(60)
        assert nodes.killed_at["soon"] == end


@virtual
async def test_an_on_demand_machine_is_not_taken_back(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    async with provider(tmp_path, nodes) as local:
        await local.launch(spec(preemptible=False))
        assert not nodes.running["m1"].preemptible
        with pytest.raises(InvalidMachine, match="on-demand machine") as refused:
            await local.preempt("m1")
        assert refused.value.field == "preemptible"


@virtual
async def test_the_longest_run_of_a_machine_ends_it_without_a_preemption(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    async with provider(tmp_path, nodes) as local:
        made = await local.launch(spec(max_run_duration_s=3600))
        end = after(3600)
        await asyncio.sleep(3601)
        assert nodes.killed_at == {"m1": end}
        assert not await local.is_preempted(ZONE, "m1", made.id)


@virtual
async def test_a_machine_that_does_not_end_is_tried_until_it_does(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    nodes.kill_errors = [HoldfastError("not yet"), HoldfastError("not yet")]
    async with provider(tmp_path, nodes) as local:
        await local.launch(spec())
        await local.preempt("m1", notice_s=0)
        await asyncio.sleep(5)
        assert nodes.calls.count("kill m1") == 3
        assert await names(local) == []


@virtual
async def test_many_machines_end_side_by_side(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    nodes.kill_s = 10
    async with provider(tmp_path, nodes) as local:
        for number in range(5):
            await local.launch(spec(f"m{number}"))
            await local.preempt(f"m{number}", notice_s=20)
        await asyncio.sleep(20 + 10 + 1)
        assert len(nodes.killed_at) == 5


@virtual
async def test_a_zone_that_is_sold_out_says_so_and_makes_nothing(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    zones = ("us-central1-a", "us-central1-b", "europe-west4-a")
    async with provider(tmp_path, nodes, template_zones=zones, sold_out=["us-central1-a"]) as local:
        with pytest.raises(Stockout, match="zone us-central1-a has no machine to spare"):
            await local.launch(spec())
        assert nodes.calls == []
        await local.launch(spec(zone="us-central1-b"))
        assert await local.zones() == ("europe-west4-a", "us-central1-b")
        assert await local.zones("us-central1") == ("us-central1-b",)


LOG = parse_trace("0,add,node1\n100000,add,node2\n300000,remove,node1\n400000,add,node3")


@virtual
async def test_a_log_says_how_many_machines_there_are_and_takes_them_back(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    async with provider(tmp_path, nodes, market=SpotMarket(trace=LOG)) as local:
        began = now()
        await local.launch(spec("m1"))
        with pytest.raises(Stockout, match="the replayed log has no more of them now"):
            await local.launch(spec("m2"))
        await local.launch(spec("on-demand", preemptible=False))
        await asyncio.sleep(101)
        await local.launch(spec("m2"))
        await asyncio.sleep(400)
        assert nodes.announced == {"m1": nodes.killed_at["m1"]}
        assert (nodes.announced["m1"] - began).total_seconds() == 300 + 30
        assert await names(local) == ["on-demand", "m2"]
        await local.delete(ZONE, "m2", "uid-of-m2")
        await local.launch(spec("m3"))
        await local.launch(spec("m4"))
        with pytest.raises(Stockout):
            await local.launch(spec("m5"))


@virtual
async def test_a_log_can_be_replayed_faster(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    async with provider(tmp_path, nodes, market=SpotMarket(trace=LOG, speed=10, notice_s=1)) as local:
        began = now()
        await local.launch(spec("m1"))
        await asyncio.sleep(60)
        assert (nodes.killed_at["m1"] - began).total_seconds() == 31


@virtual
async def test_machines_of_an_earlier_run_are_part_of_the_log(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    async with provider(tmp_path, nodes) as local:
        await local.launch(spec("old"))
    async with provider(tmp_path, nodes, market=SpotMarket(trace=LOG)) as local:
        with pytest.raises(Stockout):
            await local.launch(spec("new"))
        await asyncio.sleep(340)
        assert list(nodes.killed_at) == ["old"]


@virtual
async def test_a_launch_that_can_not_be_written_down_makes_nothing(tmp_path: Path) -> None:
    nodes = ScriptedNodes()
    market = SpotMarket(trace=parse_trace("0,add,node1"))
    async with provider(tmp_path, nodes, market=market) as local:
        blocked = tmp_path / "machines.json.partial"
        blocked.mkdir()
        with pytest.raises(ProviderError, match=r"machines\.json can't be written: Is a directory"):
            await local.launch(spec())
        assert nodes.calls == []
        blocked.rmdir()
        await local.launch(spec("m2"))  # the log's only node is free again


def test_a_damaged_list_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "machines.json"
    path.write_text('{"machines": [{"name": ')
    with pytest.raises(StateUnreadable, match="the list of the machines on this computer, can't be read"):
        MachineTable(path)
    assert path.read_text() == '{"machines": [{"name": '


@virtual
async def test_only_the_last_machines_that_are_gone_are_remembered(tmp_path: Path) -> None:
    async with provider(tmp_path, ScriptedNodes()) as local:
        await local.launch(spec("stays"))
        for number in range(REMEMBERED + 1):
            await local.launch(spec(f"m{number}"))
            await local.delete(ZONE, f"m{number}", f"uid-of-m{number}")
    table = MachineTable(tmp_path / "machines.json")
    assert table.find("m0") is None
    assert table.find("m1") is not None
    assert table.find("stays") is not None
