"""What can be done for a CheckpointBackup: the actions that `decide` chooses from. Pure."""

from datetime import datetime

from msgspec import Struct

from holdfast.api.backup_runs import BackupProgress
from holdfast.api.checkpointbackup import Phase
from holdfast.checkpointbackup.due import DueRuns
from holdfast.checkpointbackup.mode import ChosenMode
from holdfast.decisions import CleanUp


class Explanation(Struct, frozen=True):
    """Why something is as it is: a word for programs, and a sentence for people."""

    reason: str
    message: str


class Idle(Struct, frozen=True):
    """Nothing is to be done before the next run is due."""

    due: DueRuns


class HoldRun(Struct, frozen=True):
    """A run is due, or would be, and can't begin yet."""

    due: DueRuns
    why: Explanation


class BeginRun(Struct, frozen=True):
    """The next run begins. Status has it before anybody carries it out."""

    due: DueRuns
    next: datetime | None
    """When the one after it is due."""
    mode: ChosenMode
    node: str
    pod_uid: str
    warnings: tuple[Explanation, ...] = ()


class FailDueRun(Struct, frozen=True):
    """The run that is due fails without having begun; its number is used up."""

    due: DueRuns
    next: datetime | None
    why: Explanation


class EndSchedule(Struct, frozen=True):
    """No further run follows, or none until the spec is changed. A backup without any run has failed."""

    why: Explanation


class FollowRun(Struct, frozen=True):
    """The run goes on. `why`: what it waits for, if that is worth saying."""

    due: DueRuns
    why: Explanation | None = None


class AdvanceRun(Struct, frozen=True):
    """The sidecar has come to this phase."""

    phase: Phase
    progress: BackupProgress


class EndRun(Struct, frozen=True):
    """The run under way ends."""

    phase: Phase
    why: Explanation


class DeletePod(Struct, frozen=True):
    """The images of the run are pushed, and the spec wants the pod deleted: exactly the pod that was saved."""


class DeleteOldImages(Struct, frozen=True):
    """Images of runs before the newest ones are deleted; status does not change."""


Action = (
    CleanUp
    | Idle
    | HoldRun
    | BeginRun
    | FailDueRun
    | EndSchedule
    | FollowRun
    | AdvanceRun
    | EndRun
    | DeletePod
    | DeleteOldImages
)
