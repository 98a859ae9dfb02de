"""The five classes of failure.

preemption and infrastructure are nobody's fault and cost nothing; outOfMemory, hang and application use up the
backoffLimit.
"""

from typing import Literal

from msgspec import Struct

FailureClass = Literal["preemption", "infrastructure", "outOfMemory", "hang", "application"]
# In the order in which they explain each other.
CLASSES: tuple[FailureClass, ...] = ("preemption", "infrastructure", "outOfMemory", "hang", "application")
FREE: tuple[FailureClass, ...] = ("preemption", "infrastructure")
# The init container that runs beside the trainer.
SIDECAR = "holdfast-sidecar"


class WorkerFailure(Struct, frozen=True, kw_only=True):
    cause: FailureClass
    message: str
    exit_code: int | None = None
    permanent: bool = False
    """A new attempt would fail in the same way."""
    node_stopped: bool = False
    """Its node was shut down, or holdfast on this machine was: that is no part of a row of failures."""

    @property
    def is_free(self) -> bool:
        return self.cause in FREE
