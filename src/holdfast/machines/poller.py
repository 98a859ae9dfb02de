"""Looks at the machines of each project and credential every few seconds: one list, whatever their number."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

import structlog
from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.cluster.errors import ClusterError
from holdfast.machines.clouds import Account, CloudSource
from holdfast.machines.metrics import MachineMetrics
from holdfast.machines.snapshot import Absent, Listed
from holdfast.providers.errors import CloudUnauthorized, ProviderError
from holdfast.providers.protocol import Machine
from holdfast.runtime.informer import Informers
from holdfast.runtime.process import Now
from holdfast.times import format_time

INTERVAL_S = 15.0
# One list that fails is no news.
SILENT_AFTER = 3

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class _Listing(Struct, frozen=True):
    number: int
    machines: Mapping[str, Machine]
    unreachable: frozenset[str]


class _Follower(Struct, frozen=True):
    key: Key
    account: Account
    zone: str
    after: int
    """Lists up to this number were asked for before the machine was known to be there."""


class _AccountState(Struct):
    listing: _Listing | None = None
    begun: int = 0
    """How many lists were asked for so far."""
    failures: int = 0
    failing_since: datetime | None = None
    said: str = ""


class Poller:
    """Whoever follows a machine is queued when the list shows it differently, or no more."""

    def __init__(
        self,
        clouds: CloudSource,
        cluster_uid: Callable[[], Awaitable[str]],
        metrics: MachineMetrics,
        *,
        now: Now,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._clouds = clouds
        self._cluster_uid = cluster_uid
        self._metrics = metrics
        self._now = now
        self._interval_s = interval_s
        self._followers: dict[str, _Follower] = {}
        self._of_account: dict[Account, set[str]] = {}
        self._states: dict[Account, _AccountState] = {}
        self._changed = asyncio.Event()
        self._wake: Callable[[Key], None] = lambda _: None

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        self._wake = add

    def follow(self, uid: str, key: Key, account: Account, zone: str) -> None:
        """A launched machine; it counts as missing only in a list that is asked for from now on."""
        if uid in self._followers:
            return
        state = self._states.setdefault(account, _AccountState())
        self._followers[uid] = _Follower(key, account, zone, state.begun)
        self._of_account.setdefault(account, set()).add(uid)
        self._changed.set()

    def unfollow(self, uid: str) -> None:
        follower = self._followers.pop(uid, None)
        if follower is not None:
            self._of_account[follower.account].discard(uid)

    def seen(self, uid: str) -> Listed | Absent | None:
        """What the last list tells of the machine. A zone that did not answer tells nothing."""
        follower = self._followers.get(uid)
        listing = self._states[follower.account].listing if follower is not None else None
        if follower is None or listing is None:
            return None
        machine = listing.machines.get(uid)
        if machine is not None:
            return Listed(machine, listing.number)
        if listing.number <= follower.after or follower.zone in listing.unreachable:
            return None
        return Absent(listing.number)

    def silence(self, account: Account) -> str:
        """Since when the cloud gives no lists, and what it says instead; the same sentence as long as that lasts."""
        state = self._states.get(account)
        if state is None or state.failing_since is None or state.failures < SILENT_AFTER:
            return ""
        return f"no list of machines since {format_time(state.failing_since)}: {state.said}"

    async def run(self) -> None:
        """A loop for each account that has machines."""
        async with asyncio.TaskGroup() as group:
            running: set[Account] = set()
            while True:
                self._changed.clear()
                for account in [each for each, uids in self._of_account.items() if uids and each not in running]:
                    running.add(account)
                    group.create_task(self._follow_account(account, running), name=f"machines of {account}")
                await self._changed.wait()

    async def _follow_account(self, account: Account, running: set[Account]) -> None:
        while self._of_account[account]:
            await self._list(account)
            await asyncio.sleep(self._interval_s)
        running.discard(account)
        del self._of_account[account], self._states[account]

    async def _list(self, account: Account) -> None:
        provider = self._clouds.known(account)
        if provider is None:
            return  # whoever follows says why there is no credential
        state = self._states[account]
        state.begun += 1
        number = state.begun
        try:
            listed = await provider.list(await self._cluster_uid())
        except (ProviderError, ClusterError) as error:
            self._failed(account, state, str(error))
            if isinstance(error, CloudUnauthorized):
                self._clouds.rejected(account)
                # Whoever opens the cloud next reads the Secret again; where all is settled nobody else would.
                for uid in sorted(self._of_account[account])[:1]:
                    self._wake(self._followers[uid].key)
            return
        except Exception:
            # A defect must not end the operator, and with it the care for all other machines.
            log.exception("machines not listed", account=str(account))
            self._failed(account, state, "an error in holdfast: the operator's log says more")
            return
        before, was_silent = state.listing, state.failures >= SILENT_AFTER
        machines = {machine.uid: machine for machine in listed.machines if machine.uid}
        state.listing = _Listing(number, machines, listed.unreachable)
        state.failures, state.failing_since = 0, None
        self._metrics.listed((each for each in listed.machines if self._counts(each, account)), self._interval_s)
        for uid in self._of_account[account]:
            follower, machine = self._followers[uid], machines.get(uid)
            old = before.machines.get(uid) if before is not None else None
            is_missing = machine is None and number > follower.after
            if was_silent or is_missing or machine != old:
                self._wake(follower.key)

    def _counts(self, machine: Machine, account: Account) -> bool:
        """Several credentials show the machines of one project: each counts once."""
        follower = self._followers.get(machine.uid)
        if follower is not None:
            return follower.account == account
        others = (each for each in self._of_account if each.project == account.project)
        return account == min(others, key=str)

    def _failed(self, account: Account, state: _AccountState, said: str) -> None:
        log.warning("machines not listed", account=str(account), reason=said)
        state.failures += 1
        state.failing_since = state.failing_since or self._now()
        state.said = state.said if state.failures > SILENT_AFTER else said
        if state.failures == SILENT_AFTER:
            for uid in self._of_account[account]:
                self._wake(self._followers[uid].key)
