"""Dead nodes are told from those that are slow, cut off in part, or out of sight; in virtual time."""

from itertools import product

import pytest
from structlog.testing import capture_logs

from holdfast.trainingjob.decide.node_death import WEDGED_S
from holdfast.trainingjob.decide.snapshot import TIMING
from holdfast.trainingjob.objects import names
from tests.runtime.virtual import virtual
from tests.trainingjob.controller.deaths import deaths

# Three looks of two seconds after both witnesses are overdue, and the node is asked meanwhile.
SOON_S = TIMING.node_lease_timeout_s + 4.0
# What a death takes that can't be confirmed by asking.
LATER_S = TIMING.report_timeout_s + TIMING.node_lease_timeout_s
LONG_S = 240.0
# What the worker that is left takes to end, and the new ones to start.
SURVIVORS_S = 15.0


@pytest.mark.parametrize("phase_s", [0.0, 1.9, 3.1, 4.7, 6.2, 7.9, 9.4])
def test_a_node_without_power_is_given_up_within_the_time_of_its_lease(phase_s: float) -> None:
    @virtual
    async def scene() -> None:
        async with deaths() as it:
            await it.pass_time(phase_s)
            node = await it.node_of(1)
            it.lose_power(node)
            took_s = await it.restarted_within(LATER_S)
            assert took_s is not None
            assert took_s <= SOON_S
            job = await it.job()
            assert job.failure == (
                f"worker 1 on {node} was lost: it has not reported for more than 15 s, and its node has not renewed "
                "its Lease for 20 s and no longer accepts connections"
            )
            await it.pass_time(SURVIVORS_S)
            assert (await it.job()).status.state == "Running"
            assert node not in {pod.spec.node_name for pod in await it.workers() if not pod.is_terminating}

    scene()


@virtual
async def test_a_node_that_can_not_be_asked_is_given_up_later() -> None:
    async with deaths(is_open=False) as it:
        it.lose_power(await it.node_of(1))
        took_s = await it.restarted_within(LONG_S)
        assert took_s is not None
        assert took_s >= LATER_S - 5.0, "a report is at most five seconds older than the loss of power"


@virtual
async def test_a_worker_that_was_cut_off_is_lost_once_and_told_so_when_it_is_back() -> None:
    async with deaths() as it:
        node = await it.node_of(1)
        it.lose_power(node)
        assert await it.restarted_within(LONG_S) is not None
        await it.pass_time(90)
        await it.mend(node)
        await it.pass_time(120)
        job = await it.job()
        assert (job.status.state, job.status.restart_count) == ("Running", 1)
        assert {pod.metadata.labels[names.ATTEMPT_LABEL] for pod in await it.workers()} == {"1"}


@virtual
async def test_a_node_whose_kubelet_stands_still_lives_while_its_workers_report() -> None:
    async with deaths() as it:
        it.nodes[await it.node_of(1)].lease_every_s = None
        assert await it.restarted_within(LONG_S) is None


@virtual
async def test_a_node_whose_workers_are_silent_lives_while_its_lease_is_renewed() -> None:
    async with deaths() as it:
        node = it.nodes[await it.node_of(1)]
        node.report_every_s, node.answer = None, "unreachable"
        it.asked.clear()
        assert await it.restarted_within(LONG_S) is None
        assert node.name not in it.asked, "there is nothing to ask for"


@pytest.mark.parametrize(
    ("lease_every_s", "report_every_s"),
    [pair for pair in product([13.0, 18.0, 27.0, None], [17.0, 33.0, None]) if pair != (None, None)],
)
def test_a_node_that_is_overloaded_is_not_taken_for_dead(
    lease_every_s: float | None, report_every_s: float | None
) -> None:
    @virtual
    async def scene() -> None:
        async with deaths() as it:
            node = it.nodes[await it.node_of(0)]
            node.lease_every_s, node.report_every_s = lease_every_s, report_every_s
            assert await it.restarted_within(LONG_S) is None
            node.revive()
            await it.pass_time(60)
            job = await it.job()
            assert (job.status.state, job.status.restart_count) == ("Running", 0)

    scene()


@virtual
async def test_a_node_of_which_only_the_kernel_lives_is_given_up_after_two_minutes() -> None:
    async with deaths() as it:
        node = it.nodes[await it.node_of(1)]
        node.lease_every_s = node.report_every_s = None
        took_s = await it.restarted_within(LONG_S)
        assert took_s is not None
        assert WEDGED_S - 10.0 <= took_s <= WEDGED_S + 4.0
        assert (await it.job()).failure.endswith("its node has only accepted connections")


@virtual
async def test_an_operator_that_may_not_list_leases_goes_on_and_gives_nodes_up_later() -> None:
    async with deaths(may_list_leases=False) as it:
        with capture_logs() as logs:
            assert await it.restarted_within(LONG_S) is None
        assert it.unready_reasons() == []
        assert [line for line in logs if line["event"] == "watch lost"] == []
        node = await it.node_of(1)
        it.lose_power(node)
        took_s = await it.restarted_within(LONG_S)
        assert took_s is not None
        assert took_s >= LATER_S - 5.0


@virtual
async def test_a_machine_that_refuses_connections_is_there_and_is_given_up_later() -> None:
    async with deaths() as it:
        node = it.nodes[await it.node_of(1)]
        node.lose_power()
        node.answer = "refused"
        took_s = await it.restarted_within(LONG_S)
        assert took_s is not None
        assert took_s >= LATER_S - 5.0


@pytest.mark.parametrize("before_s", [0.0, 6.0, 12.0])
def test_an_operator_that_has_just_started_waits_longer(before_s: float) -> None:
    @virtual
    async def scene() -> None:
        async with deaths() as it:
            node = await it.node_of(1)
            await it.stop_operator()
            await it.pass_time(30)
            it.start_operator()
            await it.pass_time(before_s)
            it.lose_power(node)
            took_s = await it.restarted_within(LONG_S)
            assert took_s is not None
            assert took_s >= LATER_S - 5.0

    scene()


@pytest.mark.parametrize("reports_too", [True, False])
@pytest.mark.parametrize("nodes", [2, 4])
def test_an_api_server_that_is_away_for_a_minute_is_no_death(nodes: int, reports_too: bool) -> None:
    @virtual
    async def scene() -> None:
        async with deaths(nodes) as it:
            it.plane.is_away = True
            for node in it.nodes.values():
                node.report_every_s = None if reports_too else 5.0
            await it.pass_time(60)
            it.plane.is_away = False
            for node in it.nodes.values():
                node.revive()
            assert await it.restarted_within(LONG_S) is None

    scene()


@virtual
async def test_a_node_that_dies_while_the_api_server_is_away_is_given_up_after_that() -> None:
    async with deaths() as it:
        node = await it.node_of(1)
        it.plane.is_away = True
        await it.pass_time(5)
        it.lose_power(node)
        await it.pass_time(55)
        it.plane.is_away = False
        took_s = await it.restarted_within(LONG_S)
        assert took_s is not None
        assert took_s >= TIMING.node_lease_timeout_s


@virtual
async def test_where_most_nodes_fall_silent_at_once_it_is_waited_longer() -> None:
    async with deaths() as it:
        first, second = await it.node_of(0), await it.node_of(1)
        third = next(name for name in it.nodes if name not in (first, second))
        it.lose_power(first, second, third)
        took_s = await it.restarted_within(LONG_S)
        assert took_s is not None
        assert took_s >= LATER_S - 5.0


@virtual
async def test_nodes_that_all_fall_silent_for_half_a_minute_are_no_deaths() -> None:
    async with deaths() as it:
        it.lose_power(*it.nodes)
        await it.pass_time(29)
        for name in it.nodes:
            await it.mend(name)
        assert await it.restarted_within(LONG_S) is None


@virtual
async def test_while_all_is_well_each_node_is_asked_once_in_ten_minutes_at_most() -> None:
    async with deaths() as it:
        await it.pass_time(1000)
        assert sorted(set(it.asked)) == sorted({await it.node_of(0), await it.node_of(1)})
        assert len(it.asked) <= 2 * 2
