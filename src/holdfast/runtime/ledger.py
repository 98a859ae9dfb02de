"""One ledger of free capacity for all controllers of an operator: no controller gives away another's reservation."""

from holdfast.cluster.resources import NODES, PODS
from holdfast.runtime.informer import Informers
from holdfast.runtime.operator import Operator
from holdfast.scheduling.ledger import Ledger


class SharedLedger:
    """Made once for an operator, and attached by every controller that reserves capacity."""

    def __init__(self, operator: Operator) -> None:
        self.ledger = Ledger()
        self._is_attached = False
        operator.store(NODES)
        operator.store(PODS)

    def attach(self, informers: Informers) -> None:
        """Have the ledger follow the stores; only once, since a second time would count everything twice."""
        if not self._is_attached:
            self._is_attached = True
            informers.of(NODES).handlers.append(self.ledger.node_changed)
            informers.of(PODS).handlers.append(self.ledger.pod_changed)
