"""What a job's repository holds, asked of the registry: its checkpoints, what their images tell, and their deletion."""

from collections.abc import Iterable

from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.errors import HoldfastError
from holdfast.spotinstancejob.images import Checkpoint


class RepositoryProblem(HoldfastError):
    """The repository can't be asked, with what would change that. `may_pass` where a later try may succeed."""

    def __init__(self, message: str, *, may_pass: bool) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class CheckpointRepository:
    """Every method takes at most a minute, and raises a `RepositoryProblem`: call it beside a reconcile."""

    async def checkpoints(self, job: SpotInstanceJob) -> tuple[Checkpoint, ...]:
        """All whole checkpoints of this job in its repository, the newest first, with their labels."""
        raise NotImplementedError

    async def described(self, job: SpotInstanceJob, checkpoint: Checkpoint) -> Checkpoint | None:
        """The checkpoint with the labels of its images, as a restore needs them; None if an image is gone."""
        raise NotImplementedError

    async def delete(self, job: SpotInstanceJob, checkpoints: Iterable[Checkpoint]) -> int:
        """How many images were deleted; those that are gone already are no error."""
        raise NotImplementedError
