"""Whether a container checkpoint may still begin on a node that its cloud takes back."""

from collections import OrderedDict

# As many pods are remembered; a node has a few hundred at most.
MEMORY = 512


class RunDurations:
    """How long the last run of each pod took, from freezing to the pushed image."""

    def __init__(self) -> None:
        self._last_s: OrderedDict[str, float] = OrderedDict()

    def ended(self, pod_uid: str, seconds: float) -> None:
        self._last_s[pod_uid] = seconds
        self._last_s.move_to_end(pod_uid)
        if len(self._last_s) > MEMORY:
            self._last_s.popitem(last=False)

    def last_s(self, pod_uid: str) -> float | None:
        """None for a pod of which this agent has saved nothing."""
        return self._last_s.get(pod_uid)


def no_notice() -> None:
    """For an agent that watches no cloud: the node's time is not limited."""


def too_late(remaining_s: float | None, last_run_s: float | None) -> str:
    """Why no checkpoint is to begin now; "" when one may: no notice stands, or there is time.

    With no last run to judge by it is tried, since an image that is not taken is lost for certain.
    """
    if remaining_s is None:
        return ""
    if remaining_s <= 0:
        return "the cloud takes the node back, and its time is over"
    if last_run_s is None or last_run_s < remaining_s:
        return ""
    return (
        f"the cloud takes the node back in {remaining_s:.0f} s, and the last run took {last_run_s:.0f} s: its image "
        "would not be pushed in time"
    )
