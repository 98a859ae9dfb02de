"""The scheduling request of a workload: a number of GPUs on one node, and the other requests of its pod."""

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
    reservation_id: str
    """The reservation id of the attempt. The pod carries it as a label, so that the ledger can match the two."""
    shape: PodRequirements
    gpus: int
    strategy: str
    priority: int = 0
    since: str = ""
    """Creation time of the workload: the older workload goes first."""
    avoided: tuple[str, ...] = ()
    """Nodes that are used only if no other node fits."""

    @property
    def rank(self) -> tuple[int, str, Key]:
        return -self.priority, self.since, self.key

    @property
    def other_requests(self) -> Amounts:
        """All requests but GPUs."""
        return {name: amount for name, amount in self.shape.requests.items() if name != GPU}

    @property
    def strategy_impl(self) -> Strategy:
        return STRATEGIES[self.strategy]


class SchedulingClass(Struct, frozen=True, kw_only=True):
    """Workloads that may use the same nodes and prefer the same nodes, whatever their requests are."""

    shape: PodRequirements
    """The shape of any workload of the class; its requests do not matter here."""
    strategy: Strategy | None = None
    """The strategy whose node preference applies; None without a preference."""
    digest: bytes
    """Equal for equal classes."""


def scheduling_class_of(request: Request) -> SchedulingClass:
    strategy = request.strategy_impl if request.strategy_impl.prefers is not None else None
    digest = msgspec.json.encode((request.shape.constraints, strategy.name if strategy is not None else ""))
    return SchedulingClass(shape=request.shape, strategy=strategy, digest=digest)


def gpus_in(amounts: Amounts) -> int:
    """Whole GPUs: a fraction of a GPU is of no use."""
    return max(0, amounts.get(GPU, 0) // NANO)
