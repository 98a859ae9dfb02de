"""Nodes that are only noted down, and a provider on them in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.providers.local.provider import CALM, LocalProvider, SpotMarket
from holdfast.providers.local.runner import LocalNodeSpec
from holdfast.providers.local.state import MachineTable
from holdfast.providers.protocol import MachineSpec

CLUSTER = "cluster-1"
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


def now() -> datetime:
    """The virtual clock as a time of day."""
    return BEGINNING + timedelta(seconds=asyncio.get_running_loop().time())


def after(seconds: float) -> datetime:
    return now() + timedelta(seconds=seconds)


class ScriptedNodes:
    """`NodeRunner`: what runs, what was called, and the faults that a test sets."""

    def __init__(self) -> None:
        self.running: dict[str, LocalNodeSpec] = {}
        self.calls: list[str] = []
        self.announced: dict[str, datetime] = {}
        self.start_errors: list[HoldfastError] = []
        self.kill_errors: list[HoldfastError] = []
        self.kill_s = 0.0
        self.killed_at: dict[str, datetime] = {}

    async def start(self, node: LocalNodeSpec) -> None:
        self.calls.append(f"start {node.name}")
        if self.start_errors:
            raise self.start_errors.pop(0)
        self.running[node.name] = node

    def announce(self, name: str, deadline: datetime) -> None:
        self.calls.append(f"announce {name}")
        self.announced[name] = deadline

    async def kill(self, name: str) -> None:
        self.calls.append(f"kill {name}")
        self.running.pop(name, None)
        await asyncio.sleep(self.kill_s)
        if self.kill_errors:
            raise self.kill_errors.pop(0)
        self.killed_at[name] = now()


def spec(name: str = "m1", *, zone: str = "us-central1-a", **more: object) -> MachineSpec:
    fields = {"uid": f"uid-of-{name}", "cluster_uid": CLUSTER, "image": "any", "machine_type": "n1-standard-4", **more}
    return MachineSpec(name=name, zone=zone, **fields)  # type: ignore[arg-type]


@asynccontextmanager
async def provider(
    folder: Path,
    nodes: ScriptedNodes,
    *,
    market: SpotMarket = CALM,
    template_zones: Iterable[str] = (),
    sold_out: Iterable[str] = (),
    require_leadership: Callable[[], None] = lambda: None,
) -> AsyncIterator[LocalProvider]:
    made = LocalProvider(
        MachineTable(folder / "machines.json"),
        nodes,
        now=now,
        market=market,
        template_zones=lambda: template_zones,
        sold_out=lambda: sold_out,
        require_leadership=require_leadership,
    )
    async with made.running():
        yield made


async def names(provider: LocalProvider) -> list[str]:
    return [machine.name for machine in (await provider.list(CLUSTER)).machines]
