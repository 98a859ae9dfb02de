"""Names of checkpoints: every attempt has a folder of its own, and of all attempts the newest checkpoint counts."""

import re
from typing import NamedTuple

from holdfast.checkpoints.errors import UnsafeContent

ATTEMPT = re.compile(r"attempt-(0|[1-9][0-9]{0,8})")
# The whole name: what is still being written has another one (a dot before it, .tmp or .partial after it). A script
# may fill the number up with zeros, so the spelling is kept.
CHECKPOINT = re.compile(r"checkpoint-epoch-(0*[0-9]{1,9})")

# Everything of this package's own, beside or in a checkpoint, begins with this; no file of a training does.
HOLDFAST_PREFIX = ".holdfast-"
MANIFEST = f"{HOLDFAST_PREFIX}manifest.json"
QUARANTINE = "quarantine"


class CheckpointName(NamedTuple):
    """The order of the fields is the order of checkpoints: of two with one epoch, the later attempt's is newer."""

    epoch: int
    attempt: int
    folder_name: str

    @property
    def folder(self) -> str:
        """Where it is, below the job's prefix."""
        return f"attempt-{self.attempt}/{self._checked_leaf}"

    @property
    def quarantined(self) -> str:
        """Where it goes when it turns out to be damaged."""
        return f"{QUARANTINE}/attempt-{self.attempt}-{self._checked_leaf}"

    @property
    def _checked_leaf(self) -> str:
        if not CHECKPOINT.fullmatch(self.folder_name):
            raise UnsafeContent(f"{self.folder_name!a} is not the name of a checkpoint, such as checkpoint-epoch-3")
        return self.folder_name

    def __str__(self) -> str:
        return f"{self.folder_name} of attempt {self.attempt}"


def checkpoint_name(epoch: int, attempt: int) -> CheckpointName:
    return CheckpointName(epoch, attempt, f"checkpoint-epoch-{epoch}")


def parse(attempt: str, folder_name: str) -> CheckpointName | None:
    """The checkpoint that two parts of a path name, if they do."""
    number, epoch = ATTEMPT.fullmatch(attempt), CHECKPOINT.fullmatch(folder_name)
    return CheckpointName(int(epoch[1]), int(number[1]), folder_name) if number and epoch else None
