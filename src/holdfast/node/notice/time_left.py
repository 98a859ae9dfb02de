"""Whether a container checkpoint may still begin on a node that its cloud takes back."""

from collections import OrderedDict
from typing import NamedTuple

# As many pods are remembered; a node has a few hundred at most.
MEMORY = 512


class _LastRun(NamedTuple):
    seconds: float
    size: int


class RunDurations:
    """How long the last run of each pod took, from freezing to the pushed image, and how large its archives were."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, _LastRun] = OrderedDict()

    def ended(self, pod_uid: str, seconds: float, size: int = 0) -> None:
        self._last[pod_uid] = _LastRun(seconds, size)
        self._last.move_to_end(pod_uid)
        if len(self._last) > MEMORY:
            self._last.popitem(last=False)

    def last_s(self, pod_uid: str) -> float | None:
        """None for a pod of which this agent has saved nothing."""
        found = self._last.get(pod_uid)
        return found.seconds if found is not None else None

    def last_bytes(self, pod_uid: str) -> int:
        """0 for a pod of which this agent has saved nothing."""
        found = self._last.get(pod_uid)
        return found.size if found is not None else 0


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
