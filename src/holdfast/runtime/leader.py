"""Leader election: of several operators only the holder of a recently renewed Lease acts."""

import asyncio
from collections.abc import Callable
from random import Random

import structlog
from msgspec import Struct

from holdfast.api.core.objects import Lease
from holdfast.api.meta import Key
from holdfast.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound, NotLeading
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.cluster.resources import LEASES
from holdfast.errors import HoldfastError
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.process import Now, boottime_s
from holdfast.times import format_micro_time

RELEASE_S = 3.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class LeaseTiming(Struct, frozen=True):
    """A candidate takes over `duration_s` after the last renewal that it saw; the holder gives up before."""

    duration_s: int = 15
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0


TIMING = LeaseTiming()


class LeaseLost(HoldfastError):
    """This process no longer leads, and must end."""


class Elector:
    """One candidate for a Lease. Its own writes do not pass through the leadership check."""

    def __init__(
        self,
        cluster: Cluster,
        key: Key,
        identity: str,
        *,
        now: Now,
        random: Random,
        metrics: Metrics,
        timing: LeaseTiming = TIMING,
        clock: Callable[[], float] = boottime_s,
    ) -> None:
        self._cluster = cluster
        self._key = key
        self._identity = identity
        self._now = now
        self._random = random
        self._metrics = metrics
        self._timing = timing
        self._clock = clock
        self._seen: Lease | None = None
        self._seen_at = 0.0
        self._renewed: float | None = None  # when the last renewal that succeeded began, by `clock`

    @property
    def is_leading(self) -> bool:
        return self._left_s() > 0

    @property
    def renewed_s(self) -> float | None:
        """When the API server last took a renewal, by `clock`; None for who does not lead."""
        return self._renewed

    def require_leadership(self) -> None:
        """The check before every write: raises `NotLeading` unless this process certainly still holds the Lease.

        A process that was stopped or suspended resumes here with its clock far ahead, before it knows anything else.
        """
        if not self.is_leading:
            raise NotLeading(f"nothing is written: {self._identity} does not hold the Lease {self._key} any more")

    async def acquire(self) -> None:
        """Wait until this process holds the Lease. The first attempt raises errors that exclude it for good."""
        if not await self._attempt():
            log.info("waiting for the Lease", lease=str(self._key), holder=self._holder())
            while not await self._attempt_again():
                pass
        log.info("leading", lease=str(self._key), identity=self._identity)
        self._metrics.leading(True)

    async def hold(self) -> None:
        """Renew until renewals fail for too long; always ends in `LeaseLost`."""
        try:
            await asyncio.sleep(self._timing.retry_s)
            # After a pause of the process this ends even if no other process took the Lease: work that began before the
            # pause went on unguarded.
            while (left_s := self._left_s()) > 0:
                await self._renew(left_s)
                await asyncio.sleep(self._timing.retry_s)
            raise LeaseLost(f"the Lease {self._key} was not renewed for {self._timing.renew_deadline_s:g} s")
        finally:
            self._metrics.leading(False)

    async def release(self) -> None:
        """Let another process take over at once. Call this when nothing is left that writes."""
        if self._left_s() <= 0:
            return
        self._renewed = None
        try:
            async with asyncio.timeout(RELEASE_S):
                await self._read()  # the last renewal may have been cancelled before its version was seen here
                if self._seen and self._holder() == self._identity:
                    body = {"metadata": _guard(self._seen), "spec": {"holderIdentity": ""}}
                    await self._cluster.patch(LEASES, self._key, body)
                    log.info("Lease released", lease=str(self._key))
        except (ClusterError, TimeoutError) as error:
            log.warning("Lease not released, it will expire", lease=str(self._key), reason=repr(error))

    async def _attempt_again(self) -> bool:
        # Candidates that started together must not retry in lockstep.
        await asyncio.sleep(self._timing.retry_s * self._random.uniform(1.0, 1.2))
        try:
            return await self._attempt()
        except ClusterError as error:
            log.warning("cannot try for the Lease", lease=str(self._key), reason=str(error))
            return False

    async def _renew(self, left_s: float) -> None:
        try:
            async with asyncio.timeout(left_s):
                leads = await self._attempt()
        except (ClusterError, TimeoutError) as error:
            log.warning("Lease not renewed", lease=str(self._key), reason=str(error) or "no answer in time")
            return
        if not leads:
            raise LeaseLost(f"the Lease {self._key} was taken over by {self._holder()}")

    async def _attempt(self) -> bool:
        """Take or renew the Lease; returns whether this process holds the Lease now."""
        began = self._clock()
        if self._holder() != self._identity:
            await self._read()
        if self._is_free():
            try:
                self._observe(await self._claim())
            except (AlreadyExists, Conflict, NotFound):
                await self._read()  # another process was quicker, or edited or deleted the Lease
                if self._is_free():
                    raise
            else:
                self._renewed = began
                return True
        self._renewed = None
        return False

    async def _read(self) -> None:
        try:
            self._observe(await self._cluster.get(LEASES, self._key))
        except NotFound:
            self._seen = None

    async def _claim(self) -> Lease:
        now = format_micro_time(self._now())
        spec: JSON = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._timing.duration_s,
            "renewTime": now,
        }
        if self._holder() != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = self._seen.spec.lease_transitions + 1 if self._seen else 0
        if self._seen is None:
            body = {"metadata": {"name": self._key.name}, "spec": spec}
            return await self._cluster.create(LEASES, body, namespace=self._key.namespace)
        return await self._cluster.patch(LEASES, self._key, {"metadata": _guard(self._seen), "spec": spec})

    def _observe(self, lease: Lease) -> None:
        """Changes that arrive here show that a holder is alive; the clocks of two nodes are never compared."""
        if self._seen is None or self._seen.spec != lease.spec:
            self._seen_at = self._clock()
        self._seen = lease

    def _is_free(self) -> bool:
        if self._seen is None or self._holder() in ("", self._identity):
            return True
        duration_s = self._seen.spec.lease_duration_seconds or self._timing.duration_s
        return self._clock() - self._seen_at > duration_s

    def _holder(self) -> str:
        return (self._seen.spec.holder_identity or "") if self._seen else ""

    def _left_s(self) -> float:
        """How long this process certainly holds the Lease, counted from the start of the last renewal."""
        return self._renewed + self._timing.renew_deadline_s - self._clock() if self._renewed is not None else 0.0


def _guard(lease: Lease) -> JSON:
    return {"resourceVersion": lease.metadata.resource_version, "uid": lease.metadata.uid}
