"""A provider against the double, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random
from typing import Any, TypeVar

import msgspec

from holdfast.providers.gcp.credentials import parse_service_account
from holdfast.providers.gcp.http import Http
from holdfast.providers.gcp.provider import GcpProvider, connect
from holdfast.providers.protocol import MachineSpec
from tests.providers.compute_engine.accounts import Account
from tests.providers.compute_engine.double import PROJECT, ComputeEngine
from tests.providers.compute_engine.machine import REALISTIC, Pace
from tests.providers.compute_engine.server import InProcess
from tests.runtime.virtual import VirtualLoop

UID = "7f9c2d1e-8c11-4b0e-9b53-0d6f9a1c2e3f"
CLUSTER = "c1a5de00-0000-4000-8000-000000000001"
NAME = f"holdfast-{UID}"
ZONE = "us-central1-a"
IMAGE = "projects/cos-cloud/global/images/cos-stable-109-17800-147-54"
BEGINNING = datetime(2026, 3, 1, tzinfo=UTC)

SPEC = MachineSpec(
    name=NAME,
    zone=ZONE,
    uid=UID,
    cluster_uid=CLUSTER,
    job="my-training-job",
    image=IMAGE,
    machine_type="n1-standard-4",
    gpu_type="nvidia-tesla-t4",
    gpu_count=1,
    metadata={"enable-guest-attributes": "TRUE", "enable-oslogin": "FALSE"},
)


def spec(**changes: Any) -> MachineSpec:
    return msgspec.structs.replace(SPEC, **changes)


def another(number: int, **changes: Any) -> MachineSpec:
    """A machine of another object."""
    uid = f"00000000-0000-4000-8000-{number:012}"
    return spec(uid=uid, name=f"holdfast-{uid}", **changes)


T = TypeVar("T")


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def now() -> datetime:
    """The time of the running loop, as a date."""
    return BEGINNING + timedelta(seconds=asyncio.get_running_loop().time())


# Reading a key takes longer than a launch in virtual time.
_parsed = cache(parse_service_account)


class Lab:
    def __init__(self, cloud: ComputeEngine, account: Account) -> None:
        self.cloud = cloud
        self.account = account
        self.observed: list[tuple[str, int]] = []

    def provider(
        self, *, http: Http | None = None, require_leadership: Callable[[], None] = lambda: None
    ) -> GcpProvider:
        """Another one has nothing in memory of the first: as after a restart."""
        return connect(
            PROJECT,
            _parsed(self.account.key_file()),
            now=now,
            random=Random(0),
            require_leadership=require_leadership,
            endpoint=self.cloud.endpoint,
            observe=lambda method, status: self.observed.append((method, status)),
            http=http or InProcess(self.cloud),
        )


@asynccontextmanager
async def lab(pace: Pace = REALISTIC) -> AsyncIterator[Lab]:
    cloud = ComputeEngine(now=now, pace=pace)
    yield Lab(cloud, cloud.add_account())
    await cloud.close()
