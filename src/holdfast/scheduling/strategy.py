"""A placement strategy: which nodes are preferred, and which node with enough free GPUs is picked."""

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from holdfast.scheduling.free_gpus import FreeGpuIndex, NodeFilter, RandomSource
from holdfast.scheduling.ledger import NodeCapacity

# Picks a fitting node with enough free GPUs from the index; None when there is none.
Pick: TypeAlias = Callable[[FreeGpuIndex, int, NodeFilter, RandomSource], str | None]
Preference: TypeAlias = Callable[[NodeCapacity], bool]


class Strategy(Struct, frozen=True, kw_only=True):
    name: str
    pick: Pick
    prefers: Preference | None = None
    """Nodes that go before all others, however many GPUs the others have free; without it all nodes are equal."""
