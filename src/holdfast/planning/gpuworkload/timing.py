"""How long things may take before something is done about them."""

from msgspec import Struct


class Timing(Struct, frozen=True, kw_only=True):
    bind_timeout_s: float = 120.0
    """How long the chosen node is kept for a pod that is turned away: a scheduler tries again within seconds of news.

    Where the Job controller or the scheduler have not looked at it at all it is kept: a new Job would help nobody.
    """
    reservation_timeout_s: float = 600.0
    """How long room counts as taken for a workload that is not looked at any more.

    Each look begins that anew, and there is one within `bind_timeout_s`: it may fail for as long as five of these.
    """
    node_not_ready_s: float = 10.0
    """How long a node may be silent before a pod that is not there yet goes elsewhere.

    A control plane that comes back after a while takes all nodes for silent for a moment.
    """
    explain_s: float = 10.0
    """After so long it is worth asking why there is no pod, and telling who has not looked."""
    starvation_timeout_s: float = 600.0
    """How long smaller workloads may pass one that does not fit."""
    retry_cap_s: float = 300.0
    """The longest wait before another try, whatever was the reason."""
    infrastructure_backoff_s: float = 10.0
    """Before a further new placement when nodes are lost in a row; doubled each time. The first is at once."""
    stable_after_s: float = 60.0
    """A try that ran so long is no part of such a row."""
    lost_pod_timeout_s: float = 60.0
    """How long after the end of its grace a pod on an unreachable node still holds up the next try."""


TIMING = Timing()
