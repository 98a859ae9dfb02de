"""What a list of machines tells, and who is queued for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from random import Random

from msgspec import structs
from prometheus_client import CollectorRegistry

from holdfast.api.core.pod import ObjectReference
from holdfast.api.meta import Key
from holdfast.machines.clouds import Account, Cloud, OneCloud, account_of
from holdfast.machines.metrics import MachineMetrics
from holdfast.machines.poller import INTERVAL_S, Poller
from holdfast.machines.snapshot import Absent, Listed
from holdfast.providers.errors import CloudUnauthorized
from holdfast.providers.protocol import MachineSpec, Provider
from holdfast.runtime.informer import Informers
from holdfast.runtime.metrics import Metrics
from holdfast.times import format_time
from tests.machines.fake_cloud import DOWN, FakeCloud
from tests.runtime.virtual import virtual

ZONE = "us-central1-a"
BEGINNING = datetime(2026, 3, 1, tzinfo=UTC)
ACCOUNT = account_of("ml", "lab-project", ObjectReference(name="gcp"))


def now() -> datetime:
    return BEGINNING + timedelta(seconds=asyncio.get_running_loop().time())


class CloudOfTest(OneCloud):
    def __init__(self, cloud: FakeCloud) -> None:
        super().__init__(cloud)
        self.refused: list[Account] = []
        self.is_open = True

    def known(self, account: Account) -> Provider | None:
        return super().known(account) if self.is_open else None

    def rejected(self, account: Account) -> None:
        self.refused.append(account)

    async def open(self, *_: object, **__: object) -> Cloud:
        raise AssertionError("a list asks for no credential")


class Bench:
    def __init__(self) -> None:
        self.cloud = FakeCloud(now)
        self.source = CloudOfTest(self.cloud)
        self.registry = CollectorRegistry()
        metrics = MachineMetrics(self.registry, lambda: ())
        self.poller = Poller(self.source, self.cluster_uid, metrics, now=now)
        self.woken: list[Key] = []
        informers = Informers(None, (), metrics=Metrics(), random=Random(0))  # type: ignore[arg-type]
        self.poller.attach(informers, self.woken.append)
        self.running = asyncio.create_task(self.poller.run())

    async def cluster_uid(self) -> str:
        return "cluster"

    async def make(self, number: int, *, zone: str = ZONE) -> str:
        spec = MachineSpec(
            name=f"m{number}", zone=zone, uid=f"u{number}", cluster_uid="cluster", image="i", machine_type="n1"
        )
        await self.cloud.launch(spec)
        return spec.uid

    def follow(self, number: int, *, account: Account = ACCOUNT, zone: str = ZONE) -> None:
        self.poller.follow(f"u{number}", Key("ml", f"m{number}"), account, zone)

    async def next_list(self) -> list[str]:
        """Who is queued by it."""
        self.woken.clear()
        await asyncio.sleep(INTERVAL_S)
        return sorted(key.name for key in self.woken)


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    it = Bench()
    try:
        yield it
    finally:
        it.running.cancel()
        with suppress(asyncio.CancelledError):
            await it.running


@virtual
async def test_one_list_tells_of_all_machines_and_who_sees_nothing_new_is_not_queued() -> None:
    async with bench() as it:
        for number in range(100):
            await it.make(number)
            it.follow(number)
        assert len(await it.next_list()) == 100, "seen for the first time"
        it.cloud.machines["m7"] = structs.replace(it.cloud.machines["m7"], state="STOPPING")
        assert await it.next_list() == ["m7"]
        seen = it.poller.seen("u7")
        assert isinstance(seen, Listed)
        assert seen.machine.state == "STOPPING"
        assert await it.next_list() == []
        assert it.cloud.calls["list"] == 3


@virtual
async def test_a_machine_is_missing_only_in_a_list_that_was_asked_for_after_it_was_launched() -> None:
    async with bench() as it:
        await it.make(1)
        it.follow(1)
        it.cloud.takes_s["list"] = 10
        await asyncio.sleep(2)
        it.follow(2)
        await asyncio.sleep(9)
        assert it.poller.seen("u2") is None, "the first list was under way already"
        await asyncio.sleep(INTERVAL_S + 10)
        assert it.poller.seen("u2") == Absent(2)
        assert "m2" in {key.name for key in it.woken}


@virtual
async def test_a_machine_that_stays_missing_is_told_with_each_list() -> None:
    async with bench() as it:
        it.follow(1)
        await it.next_list()
        first = it.poller.seen("u1")
        assert await it.next_list() == ["m1"]
        assert it.poller.seen("u1") != first


@virtual
async def test_a_zone_that_does_not_answer_tells_nothing() -> None:
    async with bench() as it:
        await it.make(1)
        it.follow(1)
        await it.next_list()
        it.cloud.unreachable.add(ZONE)
        await it.next_list()
        assert it.poller.seen("u1") is None


@virtual
async def test_a_cloud_that_is_silent_for_a_while_is_said_once_and_again_when_it_speaks() -> None:
    async with bench() as it:
        await it.make(1)
        it.follow(1)
        await it.next_list()
        since = now()
        it.cloud.errors["list"] = DOWN
        assert await it.next_list() == []
        assert await it.next_list() == []
        assert it.poller.silence(ACCOUNT) == ""
        assert await it.next_list() == ["m1"]
        said = it.poller.silence(ACCOUNT)
        assert said.endswith("the cloud answers 503")
        assert format_time(since) in said
        assert isinstance(it.poller.seen("u1"), Listed), "what was told last"
        it.cloud.errors["list"] = CloudUnauthorized("revoked meanwhile")
        assert await it.next_list() == ["m1"], "one of them, to have the Secret read again"
        assert (it.poller.silence(ACCOUNT), it.source.refused) == (said, [ACCOUNT]), "the same sentence: no write"
        it.cloud.errors.clear()
        assert await it.next_list() == ["m1"]
        assert it.poller.silence(ACCOUNT) == ""


@virtual
async def test_a_defect_of_the_list_ends_nothing() -> None:
    async with bench() as it:
        await it.make(1)
        it.follow(1)
        it.cloud.errors["list"] = AttributeError("a defect")
        await asyncio.sleep(4 * INTERVAL_S)
        assert not it.running.done()
        assert "an error in holdfast" in it.poller.silence(ACCOUNT)


@virtual
async def test_accounts_are_listed_side_by_side_and_not_longer_than_they_have_machines() -> None:
    async with bench() as it:
        other = account_of("other", "lab-project", ObjectReference(name="gcp"))
        it.follow(1)
        it.follow(2, account=other)
        await asyncio.sleep(1)
        assert it.cloud.calls["list"] == 2
        it.poller.unfollow("u1")
        it.poller.unfollow("u2")
        assert it.poller.seen("u1") is None
        await asyncio.sleep(10 * INTERVAL_S)
        assert it.cloud.calls["list"] <= 4
        it.follow(3)
        await asyncio.sleep(1)
        assert it.poller.seen("u3") == Absent(1)


@virtual
async def test_the_seconds_of_machines_are_counted_by_zone() -> None:
    async with bench() as it:
        for number, zone in ((1, ZONE), (2, ZONE), (3, "us-central1-b")):
            await it.make(number, zone=zone)
            it.follow(number, zone=zone)
        await asyncio.sleep(10 * INTERVAL_S - 1)
        for zone, lists in ((ZONE, 20), ("us-central1-b", 10)):
            found = it.registry.get_sample_value("holdfast_machine_seconds_total", {"zone": zone})
            assert found == lists * INTERVAL_S


@virtual
async def test_a_machine_that_several_credentials_of_its_project_show_counts_once() -> None:
    async with bench() as it:
        for number in (1, 2, 3):
            await it.make(number)
        it.follow(1)
        it.follow(2, account=account_of("other", "lab-project", ObjectReference(name="gcp")))
        await asyncio.sleep(INTERVAL_S - 1)
        assert it.cloud.calls["list"] == 2
        found = it.registry.get_sample_value("holdfast_machine_seconds_total", {"zone": ZONE})
        assert found == 3 * INTERVAL_S, "also the one that nobody follows"


@virtual
async def test_a_machine_that_is_followed_already_is_not_followed_anew() -> None:
    async with bench() as it:
        it.follow(1)
        await it.next_list()
        it.follow(1)
        assert isinstance(it.poller.seen("u1"), Absent)


@virtual
async def test_without_a_credential_nothing_is_listed_and_nothing_is_said() -> None:
    async with bench() as it:
        it.source.is_open = False
        it.follow(1)
        await it.next_list()
        assert (it.cloud.calls["list"], it.poller.seen("u1"), it.poller.silence(ACCOUNT)) == (0, None, "")
        it.source.is_open = True
        await it.next_list()
        assert it.cloud.calls["list"] == 1


@virtual
async def test_of_what_nobody_follows_nothing_is_known() -> None:
    async with bench() as it:
        assert (it.poller.seen("u1"), it.poller.silence(ACCOUNT)) == (None, "")
        it.poller.unfollow("u1")
