"""A machine joins over SSH, or does not, for each thing that can be wrong with it."""

import asyncio
import logging
from datetime import timedelta

import pytest
import uvloop

from holdfast.api.meta import Key
from holdfast.cluster.errors import NotFound
from holdfast.cluster.resources import NODES
from holdfast.machines.joining import JoinFailed, JoinProgress, JoinStep
from holdfast.machines.ssh_joiner import JoinTiming
from tests.machines.join_bench import join_bench, now
from tests.machines.light_machine import Fault
from tests.runtime.virtual import settled, virtual

ALL_STEPS = [*JoinStep]


@virtual
async def test_a_machine_joins_with_a_token_of_its_own() -> None:
    async with join_bench() as bench:
        machine = await bench.boot()

        await bench.join()

        node = await bench.node()
        assert node.metadata.labels["holdfast.dev/instance"] == bench.target.uid
        assert bench.steps == ALL_STEPS
        assert machine.logins == 1
        assert len(machine.inputs) == 1
        assert not await bench.has_token()


@virtual
async def test_each_step_has_its_own_time() -> None:
    async with join_bench() as bench:
        await bench.boot()
        await bench.join()

        first, last = bench.progress[0], bench.progress[-1]
        assert first.step == JoinStep.HOST_KEY
        assert last.step == JoinStep.NODE_REGISTERED
        assert all(now() < progress.deadline <= now() + timedelta(minutes=5) for progress in bench.progress)


FAULTS = [
    (Fault.NO_HOST_KEY, JoinStep.HOST_KEY, "SSH host key .* guest agent"),
    (Fault.SSH_NEVER_OPENS, JoinStep.LOGIN, r"logging in: 127\..* port \d+: Connect call failed|Connection refused"),
    (Fault.SSH_ANSWERS_NOTHING, JoinStep.LOGIN, "logging in: 127"),
    (Fault.WRONG_HOST_KEY, JoinStep.LOGIN, "another host key than the machine has told the cloud: nobody logs in"),
    (Fault.KEY_REFUSED, JoinStep.LOGIN, "does not take the key of user holdfast"),
    (Fault.NO_SUDO, JoinStep.PREFLIGHT, "the machine said: sudo: a password is required"),
    (Fault.NO_KUBEADM, JoinStep.PREFLIGHT, "looking for kubeadm on the machine: it is not installed there"),
    (
        Fault.KUBEADM_FAILS,
        JoinStep.KUBEADM,
        r'exit status 1, and has said: \[preflight\] .* \| error .*: token "\[hidden\]" was refused$',
    ),
    (
        Fault.KUBEADM_HANGS,
        JoinStep.KUBEADM,
        r"running kubeadm join, which has said so far: .* waiting for the API server with token \[hidden\]; its time",
    ),
    (Fault.NO_NODE, JoinStep.NODE_REGISTERED, "waiting for Node holdfast-0c5f.*: there is none yet; its time was over"),
    (
        Fault.OTHER_NAME,
        JoinStep.NODE_REGISTERED,
        "has become Node localhost-2a3b4c5d instead of holdfast-0c5f.*: something there gives its kubelet another name",
    ),
]


@pytest.mark.parametrize(("fault", "step", "words"), FAULTS, ids=[fault.name for fault, _, _ in FAULTS])
def test_a_machine_that_does_not_join_fails_at_its_step_with_what_was_said_last(
    fault: Fault, step: JoinStep, words: str
) -> None:
    @virtual
    async def join() -> None:
        async with join_bench() as bench:
            await bench.boot(fault)

            with pytest.raises(JoinFailed, match=words) as failed:
                await bench.join()

            assert failed.value.step == step
            assert bench.steps == ALL_STEPS[: ALL_STEPS.index(step) + 1]
            assert not await bench.has_token()

    join()


@pytest.mark.parametrize("fault", [Fault.NO_HOST_KEY, Fault.WRONG_HOST_KEY])
def test_nobody_logs_in_without_the_right_host_key(fault: Fault) -> None:
    @virtual
    async def join() -> None:
        async with join_bench() as bench:
            machine = await bench.boot(fault)

            with pytest.raises(JoinFailed):
                await bench.join()

            assert machine.logins == 0
            assert machine.commands == []

    join()


@pytest.mark.parametrize("setting", [{"enable-guest-attributes": "FALSE"}, {"enable-oslogin": "TRUE"}])
def test_a_machine_that_tells_no_host_key_is_not_logged_in_to(setting: dict[str, str]) -> None:
    @virtual
    async def join() -> None:
        async with join_bench() as bench:
            machine = await bench.boot(**setting)

            with pytest.raises(JoinFailed) as failed:
                await bench.join()

            assert failed.value.step == JoinStep.HOST_KEY
            assert machine.logins == 0

    join()


@virtual
async def test_a_machine_with_the_keys_of_its_image_is_waited_for_until_it_has_made_its_own() -> None:
    async with join_bench() as bench:
        machine = await bench.boot()
        other = await bench.machines.boot(machine.wanted, metadata=machine.metadata)
        bench.told_keys = other.host_keys
        joining = asyncio.create_task(bench.join())
        await asyncio.sleep(20)
        assert machine.logins == 0

        bench.told_keys = ("ssh-dss AAAA", "nonsense", *machine.host_keys)
        await joining

        assert (await bench.node()).is_ready


@pytest.mark.parametrize("fault", [Fault.NO_HOST_KEY, Fault.KEY_REFUSED, Fault.NO_KUBEADM, Fault.NO_SUDO])
def test_what_a_boot_brings_late_is_waited_for(fault: Fault) -> None:
    @virtual
    async def join() -> None:
        async with join_bench() as bench:
            machine = await bench.boot(fault)
            joining = asyncio.create_task(bench.join())
            await asyncio.sleep(60)
            assert not joining.done()

            machine.faults = frozenset()
            await joining

            assert (await bench.node()).is_ready

    join()


@virtual
async def test_an_address_that_does_not_answer_is_followed_by_the_next() -> None:
    async with join_bench() as bench:
        await bench.boot(Fault.SSH_NEVER_OPENS)
        silent = bench.machine.address
        await bench.machines.power_off(bench.target.node_name)
        machine = await bench.boot()

        await bench.join(addresses=(silent, machine.address))

        assert machine.logins == 1


@virtual
async def test_kubeadm_goes_on_when_the_connection_breaks() -> None:
    async with join_bench() as bench:
        machine = await bench.boot(Fault.CONNECTION_BREAKS)

        await bench.join()

        assert len(machine.inputs) == 1
        assert machine.logins == 2
        assert (await bench.node()).is_ready


@virtual
async def test_an_operator_that_starts_anew_finds_the_kubeadm_of_the_one_before() -> None:
    async with join_bench() as bench:
        machine = await bench.boot(Fault.KUBEADM_HANGS)
        before = asyncio.create_task(bench.join())
        await machine.kubeadm_began.wait()
        before.cancel()
        await asyncio.wait([before])
        assert await bench.has_token()  # kubeadm may still need it

        again = asyncio.create_task(bench.join(bench.new_joiner(), resumed=bench.progress[-1]))
        await asyncio.sleep(20)
        machine.kubeadm_goes_on.set()
        await again

        assert len(machine.inputs) == 1
        assert (await bench.node()).is_ready
        assert not await bench.has_token()


@virtual
async def test_a_machine_that_has_joined_already_runs_no_kubeadm_again() -> None:
    async with join_bench() as bench:
        machine = await bench.boot()
        await bench.join()
        bench.progress.clear()

        await bench.join(bench.new_joiner())

        assert len(machine.inputs) == 1
        assert bench.steps == [step for step in ALL_STEPS if step != JoinStep.KUBEADM]


@virtual
async def test_a_join_that_broke_off_half_way_is_repeated_with_the_same_token() -> None:
    """The operator may have died between the token and kubeadm, and can't read what it has made."""
    async with join_bench() as bench:
        machine = await bench.boot()
        token = await bench.new_joiner().mint(bench.target)
        assert await bench.has_token()

        await bench.join()

        assert token in machine.inputs[0]
        assert not await bench.has_token()


@pytest.mark.parametrize(
    ("left_s", "given_s"), [(100, 100), (-3600, 30)], ids=["in time", "the operator was away for an hour"]
)
def test_a_step_that_was_begun_before_gets_no_time_anew(left_s: int, given_s: int) -> None:
    @virtual
    async def join() -> None:
        async with join_bench() as bench:
            await bench.boot(Fault.NO_KUBEADM)
            resumed = JoinProgress(
                step=JoinStep.PREFLIGHT, deadline=now() + timedelta(seconds=left_s), message="looking for kubeadm"
            )
            begun = now()

            with pytest.raises(JoinFailed):
                await bench.join(resumed=resumed)

            assert [progress.step for progress in bench.progress][-1] == JoinStep.PREFLIGHT
            assert bench.progress[-1].deadline - begun <= timedelta(seconds=given_s + 1)

    join()


@virtual
async def test_a_step_after_the_one_that_was_begun_has_its_whole_time() -> None:
    async with join_bench() as bench:
        await bench.boot(Fault.NO_NODE)
        resumed = JoinProgress(step=JoinStep.LOGIN, deadline=now() + timedelta(seconds=40), message="logging in")

        with pytest.raises(JoinFailed):
            await bench.join(resumed=resumed)

        last = bench.progress[-1]
        assert last.step == JoinStep.NODE_REGISTERED
        assert last.deadline - resumed.deadline > timedelta(minutes=4)


@virtual
async def test_the_same_word_is_not_reported_twice() -> None:
    async with join_bench() as bench:
        await bench.boot(Fault.KEY_REFUSED)

        with pytest.raises(JoinFailed):
            await bench.join()

        login = [progress for progress in bench.progress if progress.step == JoinStep.LOGIN]
        assert len(login) == 2


@virtual
async def test_a_join_that_is_cancelled_leaves_no_connection() -> None:
    async with join_bench() as bench:
        machine = await bench.boot(Fault.NO_KUBEADM)
        joining = asyncio.create_task(bench.join())
        await machine.was_commanded.wait()

        joining.cancel()
        await asyncio.wait([joining])
        await settled()

        assert machine.connections == 0
        with pytest.raises(NotFound):
            await bench.cluster.get(NODES, Key("", bench.target.node_name))


def test_a_machine_joins_on_the_event_loop_of_the_operator_and_without_its_librarys_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In its own time, and with the connections of uvloop."""
    timing = JoinTiming(step_s=60, first_pause_s=0.01, longest_pause_s=0.1)

    async def join() -> None:
        async with join_bench(timing, quiet=True) as bench:
            await bench.boot()
            await bench.join()
            assert (await bench.node()).is_ready

    with caplog.at_level(logging.INFO), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(join())

    assert [record for record in caplog.records if record.name.startswith("asyncssh")] == []
