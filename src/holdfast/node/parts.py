"""What a run works with: everything is given to it, so that many agents fit into one process, and tests can end one
at any step."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, TypeVar

from msgspec import Struct, field

from holdfast.api.credentials import RegistryCredential
from holdfast.checkpoints.images.reference import RegistryAddress
from holdfast.checkpoints.images.registry import RegistryClient
from holdfast.cluster.protocol import Cluster
from holdfast.node.archives import ArchiveFolder
from holdfast.node.credentials import RunCredentials
from holdfast.node.facts import HostFacts
from holdfast.node.journal import Journal
from holdfast.node.metrics import AgentMetrics
from holdfast.node.notice.time_left import RunDurations, no_notice
from holdfast.runtime.process import Now, utc_now

Result = TypeVar("Result")


class AgentClocks(NamedTuple):
    """now: the wall clock. clock: seconds that only grow."""

    now: Now = utc_now
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep


class KubeletCheckpoints(Protocol):
    async def checkpoint(self, namespace: str, pod: str, container: str, timeout_s: int) -> str: ...


class OpenRegistry(Protocol):
    def __call__(
        self, address: RegistryAddress, credential: RegistryCredential, *, deadline_s: float
    ) -> AbstractAsyncContextManager[RegistryClient]: ...


class CallTimes:
    """When the last call for each container ended: two archives of one second would have one name."""

    GAP_S = 1.0

    def __init__(self) -> None:
        self._last_s: dict[tuple[str, str], float] = {}

    def wait_s(self, pod_uid: str, container: str, now_s: float) -> float:
        last_s = self._last_s.get((pod_uid, container))
        return 0.0 if last_s is None else max(0.0, last_s + self.GAP_S - now_s)

    def called(self, pod_uid: str, container: str, now_s: float) -> None:
        # One run at a time: what is older than the gap no longer matters.
        self._last_s = {key: at_s for key, at_s in self._last_s.items() if now_s - at_s < self.GAP_S}
        self._last_s[pod_uid, container] = now_s


class RunParts(Struct, frozen=True, kw_only=True):
    """plain_http: registries that may be reached without TLS. remaining_s: of a node that its cloud takes back."""

    node: str
    cluster: Cluster
    kubelet: KubeletCheckpoints
    credentials: RunCredentials
    journal: Journal
    archives: ArchiveFolder
    open_registry: OpenRegistry
    host: HostFacts
    metrics: AgentMetrics
    plain_http: Collection[str] = ()
    clocks: AgentClocks = AgentClocks()
    call_times: CallTimes
    durations: RunDurations = field(default_factory=RunDurations)
    remaining_s: Callable[[], float | None] = no_notice


def registry_opener(plain_http: Collection[str], clocks: AgentClocks) -> OpenRegistry:
    def open_registry(
        address: RegistryAddress, credential: RegistryCredential, *, deadline_s: float
    ) -> AbstractAsyncContextManager[RegistryClient]:
        return RegistryClient(
            address, credential, deadline_s=deadline_s, plain_http=plain_http, clock=clocks.clock, sleep=clocks.sleep
        )

    return open_registry


async def in_thread(work: Callable[[], Result], given_up: threading.Event | None = None) -> Result:
    """Do blocking work in a thread, and see it end even when the task is cancelled: its files must not outlive it."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if given_up is not None:
            given_up.set()
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()
        raise
