"""What a strategy is: which machines go first, and which of several that have enough is taken."""

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from holdfast.scheduling.free_gpus import FreeGpuIndex, NodeFilter, RandomSource
from holdfast.scheduling.ledger import NodeCapacity

# From the shelf, a machine with so many GPUs free that will do; None when there is none.
Pick: TypeAlias = Callable[[FreeGpuIndex, int, NodeFilter, RandomSource], str | None]
Preference: TypeAlias = Callable[[NodeCapacity], bool]


class Strategy(Struct, frozen=True, kw_only=True):
    name: str
    pick: Pick
    prefers: Preference | None = None
    """Machines that go before all others, however many GPUs these have free; without it all are equal."""
