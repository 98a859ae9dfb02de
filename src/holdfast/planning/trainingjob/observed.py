"""What is seen of a TrainingJob at one moment."""

from msgspec import Struct

from holdfast.api.builtin import Job, Pod
from holdfast.api.trainingjob import TrainingJob

FINISHED = ("Completed", "Failed")


class Observed(Struct, frozen=True, kw_only=True):
    job: TrainingJob
    workers: Job | None = None
    """The Job of the current attempt."""
    earlier: tuple[Job, ...] = ()
    """Jobs of earlier attempts that are not gone yet."""
    pods: tuple[Pod, ...] = ()
    """The workers of the current attempt."""
    outdated: bool = False
    """The current attempt was made for another spec than the one that is written now."""
    obstacle: str = ""
    """What keeps the children from being made, in a sentence; it may pass."""
    refusal: str = ""
    """Why the children can never be made as they are asked for."""

    @property
    def state(self) -> str:
        return str(self.job.status.state) if self.job.status is not None and self.job.status.state else ""

    @property
    def finished(self) -> bool:
        """A job that has ended stays as it ended, whatever becomes of its children."""
        return self.state in FINISHED

    @property
    def ended(self) -> bool:
        """The workers are done, well or badly, and the status is about to say so."""
        job = self.workers
        return job is not None and (job.condition("Complete") or job.condition("Failed")) is not None
