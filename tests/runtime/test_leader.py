"""Who leads, from when on, and until when: on clocks that the tests move."""

import asyncio
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast.api.meta import Key
from holdfast.cluster.errors import ClusterError, Conflict, Forbidden, NotLeading, Unreachable
from holdfast.cluster.resources import LEASES
from holdfast.runtime.leader import Elector, LeaseLost
from holdfast.runtime.metrics import Metrics
from tests.runtime.scripted import ScriptedCluster
from tests.runtime.things import noon, running
from tests.runtime.virtual import now_s, settled, virtual

LEASE = Key("holdfast-system", "holdfast")


class Candidate:
    """An elector with a clock of its own: `skipped_s` is the time that passed while its process was stopped."""

    def __init__(self, cluster: ScriptedCluster, name: str) -> None:
        self.skipped_s = 0.0
        self.metrics = Metrics()
        self.elector = Elector(
            cluster,
            LEASE,
            name,
            now=noon,
            random=Random(name),
            metrics=self.metrics,
            clock=lambda: now_s() + self.skipped_s,
        )

    async def lead(self) -> None:
        await self.elector.acquire()
        await self.elector.hold()

    def leads(self) -> bool:
        try:
            self.elector.require_leadership()
        except NotLeading:
            return False
        return True

    def gauge(self) -> float | None:
        return self.metrics.registry.get_sample_value("holdfast_leader")


def spec(cluster: ScriptedCluster) -> dict[str, object]:
    found: dict[str, object] = cluster.peek(LEASES, LEASE)["spec"]
    return found


@virtual
async def test_when_the_api_server_last_took_a_renewal_is_known_of_who_leads() -> None:
    cluster = ScriptedCluster()
    first, second = Candidate(cluster, "first"), Candidate(cluster, "second")
    began_s = now_s()
    async with running(first.lead()), running(second.lead()):
        await asyncio.sleep(61)
        taken_s = first.elector.renewed_s
        assert taken_s is not None
        assert began_s + 57 <= taken_s <= began_s + 61
        assert second.elector.renewed_s is None
        cluster.errors["patch"] = [Unreachable("no")] * 3
        await asyncio.sleep(5)
        assert first.elector.renewed_s == taken_s


@virtual
async def test_the_first_candidate_makes_the_lease_and_holds_it() -> None:
    cluster = ScriptedCluster()
    one = Candidate(cluster, "one")
    assert not one.leads()
    async with running(one.lead()):
        await settled()
        assert one.leads()
        assert one.gauge() == 1
        assert spec(cluster) == {
            "holderIdentity": "one",
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-01-02T12:00:00.000000Z",
            "renewTime": "2026-01-02T12:00:00.000000Z",
            "leaseTransitions": 0,
        }
        await asyncio.sleep(601.0)
        assert one.leads()
        assert len(cluster.calls_of("patch")) == 300
        assert len(cluster.calls_of("get")) == 1  # a holder does not look, it renews


@virtual
async def test_a_standby_takes_over_when_the_holder_falls_silent_and_never_while_it_may_still_write() -> None:
    cluster = ScriptedCluster()
    one, two = Candidate(cluster, "one"), Candidate(cluster, "two")
    async with running(one.lead()) as first:
        await settled()
        async with running(two.lead()):
            await asyncio.sleep(100.0)
            assert one.leads()
            assert not two.leads()
            assert two.gauge() == 0
            first.cancel()  # as a process that dies
            died = now_s()
            while not two.leads():
                assert now_s() - died < 18.0
                await asyncio.sleep(0.1)
            assert not one.leads()
            assert now_s() - died > 12.0
            assert spec(cluster)["holderIdentity"] == "two"
            assert spec(cluster)["leaseTransitions"] == 1


@virtual
async def test_a_released_lease_is_taken_at_the_next_attempt() -> None:
    cluster = ScriptedCluster()
    one, two = Candidate(cluster, "one"), Candidate(cluster, "two")
    async with running(one.lead()):
        await settled()
    async with running(two.lead()):
        await settled()
        assert not two.leads()
        await one.elector.release()
        assert not one.leads()
        assert spec(cluster)["holderIdentity"] == ""
        await asyncio.sleep(2.5)
        assert two.leads()
        assert spec(cluster)["leaseTransitions"] == 1


@virtual
async def test_a_lease_is_released_even_if_its_last_renewal_was_never_answered() -> None:
    cluster = ScriptedCluster()
    one = Candidate(cluster, "one")
    async with running(one.lead()):
        await settled()
    await cluster.patch(LEASES, LEASE, {"spec": {"renewTime": "2026-01-02T12:00:01.000000Z"}})
    await one.elector.release()
    assert spec(cluster)["holderIdentity"] == ""


@virtual
async def test_a_lease_that_another_took_meanwhile_is_left_alone() -> None:
    cluster = ScriptedCluster()
    one = Candidate(cluster, "one")
    async with running(one.lead()):
        await settled()
    await cluster.patch(LEASES, LEASE, {"spec": {"holderIdentity": "two"}})
    await one.elector.release()
    assert spec(cluster)["holderIdentity"] == "two"


@virtual
async def test_a_candidate_without_the_lease_releases_nothing() -> None:
    cluster = ScriptedCluster()
    one, two = Candidate(cluster, "one"), Candidate(cluster, "two")
    async with running(one.lead()):
        await settled()
        async with running(two.lead()):
            await settled()
            await two.elector.release()
            assert spec(cluster)["holderIdentity"] == "one"
    one.skipped_s = 11.0
    await one.elector.release()
    assert spec(cluster)["holderIdentity"] == "one"


@virtual
async def test_a_release_that_fails_is_only_logged() -> None:
    cluster = ScriptedCluster()
    one = Candidate(cluster, "one")
    async with running(one.lead()):
        await settled()
    cluster.errors["patch"] = [Unreachable("no answer")]
    with capture_logs() as logs:
        await one.elector.release()
    assert [line["log_level"] for line in logs] == ["warning"]
    assert not one.leads()


@virtual
async def test_a_leader_that_was_stopped_finds_the_gate_shut_before_it_does_anything_else() -> None:
    cluster = ScriptedCluster()
    one = Candidate(cluster, "one")
    leading = asyncio.create_task(one.lead())
    await asyncio.sleep(1.0)
    one.elector.require_leadership()
    one.skipped_s = 10.0
    with pytest.raises(NotLeading, match="one does not hold the Lease holdfast-system/holdfast"):
        one.elector.require_leadership()
    with pytest.raises(LeaseLost, match="not renewed for 10 s"):
        await leading  # although nobody else took it
    assert not one.leads()
    assert one.gauge() == 0


@virtual
async def test_a_short_stop_costs_nothing() -> None:
    cluster = ScriptedCluster()
    one = Candidate(cluster, "one")
    async with running(one.lead()):
        await asyncio.sleep(1.0)
        one.skipped_s = 6.0
        assert one.leads()
        await asyncio.sleep(60.0)
        assert one.leads()


@virtual
async def test_the_gate_counts_from_the_beginning_of_a_renewal_not_from_its_answer() -> None:
    cluster = ScriptedCluster()
    one = Candidate(cluster, "one")
    patch = cluster.patch

    async def slow_patch(*args: Any) -> Any:
        await asyncio.sleep(7.0)
        return await patch(*args)

    async with running(one.lead()):
        await settled()
        cluster.patch = slow_patch  # type: ignore[method-assign,assignment]  # the network is slow from here on
        await asyncio.sleep(9.5)  # renewed at 9.0, begun at 2.0
        assert one.leads()
        await asyncio.sleep(3.0)
        assert not one.leads()


@virtual
async def test_a_holder_that_cannot_renew_gives_up_before_another_may_take_over() -> None:
    cluster = ScriptedCluster()
    one = Candidate(cluster, "one")
    leading = asyncio.create_task(one.lead())
    await asyncio.sleep(1.0)
    cluster.errors["patch"] = [Unreachable("no answer")] * 100
    began = now_s()
    with pytest.raises(LeaseLost, match="not renewed"):
        await leading
    assert now_s() - began < 15.0
    assert not one.leads()


@virtual
async def test_an_answer_that_never_comes_is_not_waited_for_beyond_the_deadline() -> None:
    cluster = ScriptedCluster()
    one = Candidate(cluster, "one")

    async def no_answer(*_: object) -> Any:
        await asyncio.Event().wait()

    leading = asyncio.create_task(one.lead())
    await asyncio.sleep(1.0)
    cluster.patch = no_answer  # type: ignore[method-assign,assignment]  # a server that accepts and says nothing
    began = now_s()
    with pytest.raises(LeaseLost, match="not renewed"):
        await leading
    assert now_s() - began < 15.0


@virtual
async def test_a_few_failed_renewals_are_survived() -> None:
    cluster = ScriptedCluster()
    one = Candidate(cluster, "one")
    async with running(one.lead()):
        await asyncio.sleep(1.0)
        cluster.errors["patch"] = [Unreachable("no answer"), Conflict("edited"), Unreachable("no answer")]
        await asyncio.sleep(60.0)
        assert one.leads()


@virtual
async def test_a_lease_that_someone_edits_is_still_ours() -> None:
    cluster = ScriptedCluster()
    one = Candidate(cluster, "one")
    async with running(one.lead()):
        await settled()
        await cluster.patch(LEASES, LEASE, {"metadata": {"labels": {"team": "ml"}}})
        await asyncio.sleep(60.0)
        assert one.leads()
        assert cluster.peek(LEASES, LEASE)["metadata"]["labels"] == {"team": "ml"}
        assert spec(cluster)["leaseTransitions"] == 0


@virtual
async def test_a_lease_that_someone_deletes_is_made_again() -> None:
    cluster = ScriptedCluster()
    one = Candidate(cluster, "one")
    async with running(one.lead()):
        await settled()
        cluster.drop(LEASES, LEASE)
        await asyncio.sleep(60.0)
        assert one.leads()
        assert spec(cluster)["holderIdentity"] == "one"


@virtual
async def test_a_lease_taken_by_another_is_lost_at_once() -> None:
    cluster = ScriptedCluster()
    one = Candidate(cluster, "one")
    leading = asyncio.create_task(one.lead())
    await settled()
    await cluster.patch(LEASES, LEASE, {"spec": {"holderIdentity": "two"}})
    with pytest.raises(LeaseLost, match="taken over by two"):
        await leading
    assert not one.leads()


@virtual
async def test_of_two_candidates_that_find_a_lease_free_one_gets_it() -> None:
    cluster = ScriptedCluster()
    candidates = [Candidate(cluster, f"number {n}") for n in range(5)]
    tasks = [asyncio.create_task(candidate.lead()) for candidate in candidates]
    await settled()
    for _ in range(100):
        assert sum(candidate.leads() for candidate in candidates) == 1
        await asyncio.sleep(1.0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@virtual
async def test_a_holders_wall_clock_does_not_matter() -> None:
    cluster = ScriptedCluster()
    cluster.put(
        LEASES,
        {
            "metadata": {"name": LEASE.name},
            "spec": {"holderIdentity": "lost", "leaseDurationSeconds": 40, "renewTime": "2001-01-01T00:00:00.000000Z"},
        },
        namespace=LEASE.namespace,
    )
    one = Candidate(cluster, "one")
    async with running(one.lead()):
        await asyncio.sleep(39.0)  # long expired by the clock on the wall, but we have seen it for 39 s only
        assert not one.leads()
        await asyncio.sleep(5.0)
        assert one.leads()
        assert spec(cluster)["leaseDurationSeconds"] == 15


@virtual
async def test_the_first_attempt_raises_what_keeps_a_candidate_from_ever_leading() -> None:
    cluster = ScriptedCluster()
    cluster.errors["create"] = [Forbidden("create leases: holdfast may not")]
    with pytest.raises(Forbidden, match="may not"):
        await Candidate(cluster, "one").elector.acquire()


@pytest.mark.parametrize("error", [Unreachable("no answer"), Forbidden("not any more")])
def test_a_standby_goes_on_trying_whatever_the_answer(error: ClusterError) -> None:
    @virtual
    async def goes_on() -> None:
        cluster = ScriptedCluster()
        one, two = Candidate(cluster, "one"), Candidate(cluster, "two")
        async with running(one.lead()):
            await settled()
        async with running(two.lead()):
            await settled()
            cluster.errors["get"] = [error] * 3
            await asyncio.sleep(20.0)
            assert two.leads()

    goes_on()


@virtual
async def test_at_no_moment_do_two_lead_whatever_fails_and_stops() -> None:
    random = Random(11)
    cluster = ScriptedCluster()
    candidates: list[Candidate] = []
    tasks: set[asyncio.Task[None]] = set()
    changes_of_leader = 0
    leader = None
    for step in range(4000):
        while len(tasks) < 3:
            candidates.append(Candidate(cluster, f"number {len(candidates)}"))
            tasks.add(asyncio.create_task(candidates[-1].lead()))
        leading = [candidate for candidate in candidates if candidate.leads()]
        assert len(leading) <= 1
        if leading and leading[0] is not leader:
            leader, changes_of_leader = leading[0], changes_of_leader + 1
        if leader and random.random() < 0.01:
            leader.skipped_s += random.uniform(0.0, 20.0)
        if random.random() < 0.02:
            cluster.errors[random.choice(["get", "patch"])] = [Unreachable("no answer")] * random.randrange(8)
        await asyncio.sleep(random.random())
        ended = {task for task in tasks if task.done()}
        for task in ended:
            assert isinstance(task.exception(), LeaseLost | Unreachable), step
        tasks -= ended
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert changes_of_leader > 10
