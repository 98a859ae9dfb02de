"""How long things may take before something is done about them."""

from msgspec import Struct


class Timing(Struct, frozen=True, kw_only=True):
    bind_timeout_s: float = 120.0
    """How long the pod may take to get the node that was chosen for it; then another is looked for."""
    assumed_s: float = 180.0
    """How long the room on a chosen node counts as taken without a pod there; longer than that."""
    patience_s: float = 600.0
    """How long smaller workloads may pass one that does not fit."""
    retry_cap_s: float = 300.0
    """The longest wait before another try, whatever was the reason."""
    lost_retry_s: float = 10.0
    """Before a further new placement when nodes are lost in a row; doubled each time. The first is at once."""
    lasting_s: float = 60.0
    """A try that ran so long is no part of such a row."""
    stuck_s: float = 60.0
    """How long after the end of its grace a pod on an unreachable node still holds up the next try."""


TIMING = Timing()
