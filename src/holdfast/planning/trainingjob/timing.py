"""How long things may take before something is done about them; every figure is an option of the operator."""

from msgspec import Struct


class Timing(Struct, frozen=True, kw_only=True):
    retry_s: float = 10.0
    """Before the second restart in a row; doubled with each further one. The first is at once."""
    retry_cap_s: float = 300.0
    stable_after_s: float = 600.0
    """An attempt that ran so long is no part of a row of failures."""
    restart_grace_s: int = 5
    """What the workers that are left of a broken gang get: alone they have nothing to save."""
    restart_upload_grace_s: int = 30
    """The same where a whole checkpoint may still be on its way to an object store."""
    lost_pod_timeout_s: float = 60.0
    """How long after the end of its grace a pod on an unreachable node still holds up the next attempt."""
    starvation_timeout_s: float = 600.0
    """How long smaller jobs may pass one that does not fit."""
    reservations_per_namespace: int = 1
    """For how many jobs of a namespace that have waited for longer what they lack is reserved at a time."""
    bind_timeout_s: float = 600.0
    """How long an admitted gang may take to get all its nodes before it makes room again."""
    report_timeout_s: float = 15.0
    """A worker that has reported and says nothing for so long may be lost: its node's Lease is looked at."""
    node_lease_timeout_s: float = 20.0
    """A silent worker is lost when its node's Lease was not renewed for so long either."""
    final_save_s: float = 60.0
    """How long a training may take for a last checkpoint, when it has reached its goal or a worker is told to go."""
    explain_s: float = 3.0
    """How long workers may take to start before their events are read for the reason."""


TIMING = Timing()
