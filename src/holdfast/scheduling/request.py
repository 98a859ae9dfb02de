"""What a workload asks for: one machine with so many GPUs, and all else that its pod needs there."""

import msgspec
from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.scheduling.constraints import PodRequirements
from holdfast.scheduling.ledger import GPU
from holdfast.scheduling.resources import NANO, Amounts
from holdfast.scheduling.strategies import STRATEGIES
from holdfast.scheduling.strategy import Strategy


class Request(Struct, frozen=True, kw_only=True):
    key: Key
    uid: str
    place: str
    """The try that it is for: a mark on its pod, by which the ledger knows what has come of an assumption."""
    shape: PodRequirements
    gpus: int
    strategy: str
    priority: int = 0
    since: str = ""
    """When the workload was made: who came first goes first."""
    avoided: tuple[str, ...] = ()
    """Machines that are taken only if no other will do."""

    @property
    def rank(self) -> tuple[int, str, Key]:
        return -self.priority, self.since, self.key

    @property
    def other_requests(self) -> Amounts:
        """All that it asks for beside GPUs."""
        return {name: amount for name, amount in self.shape.requests.items() if name != GPU}

    @property
    def strategy_impl(self) -> Strategy:
        return STRATEGIES[self.strategy]


class SchedulingClass(Struct, frozen=True, kw_only=True):
    """Workloads that may use the same machines and prefer the same of them, however much they ask for there."""

    shape: PodRequirements
    """Of any of them: what it asks for does not matter here."""
    strategy: Strategy | None = None
    """The one whose preference is theirs."""
    digest: bytes
    """Equal for equal sorts."""


def scheduling_class_of(request: Request) -> SchedulingClass:
    rule = request.strategy_impl if request.strategy_impl.prefers is not None else None
    digest = msgspec.json.encode((request.shape.constraints, rule.name if rule is not None else ""))
    return SchedulingClass(shape=request.shape, strategy=rule, digest=digest)


def gpus_in(amounts: Amounts) -> int:
    """Whole ones: a part of a GPU is of no use."""
    return max(0, amounts.get(GPU, 0) // NANO)
