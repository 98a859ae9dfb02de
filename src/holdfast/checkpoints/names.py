"""Names of checkpoints: every attempt has a folder of its own, and of all attempts the newest checkpoint counts."""

import re
from typing import NamedTuple

from holdfast.checkpoints.errors import Refused

ATTEMPT = re.compile(r"attempt-(0|[1-9][0-9]{0,8})")
# The whole name: what is still being written has another one (a dot before it, .tmp or .partial after it). A script
# may fill the number up with zeros, so the spelling is kept.
CHECKPOINT = re.compile(r"checkpoint-epoch-(0*[0-9]{1,9})")

# Everything of this package's own, beside or in a checkpoint, begins with this; no file of a training does.
OWN = ".holdfast-"
MANIFEST = f"{OWN}manifest.json"
QUARANTINE = "quarantine"


class Name(NamedTuple):
    """The order of the fields is the order of checkpoints: of two with one epoch, the later attempt's is newer."""

    epoch: int
    attempt: int
    leaf: str

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
        if not CHECKPOINT.fullmatch(self.leaf):
            raise Refused(f"{self.leaf!a} is not the name of a checkpoint, such as checkpoint-epoch-3")
        return self.leaf

    def __str__(self) -> str:
        return f"{self.leaf} of attempt {self.attempt}"


def named(epoch: int, attempt: int) -> Name:
    return Name(epoch, attempt, f"checkpoint-epoch-{epoch}")


def parse(attempt: str, leaf: str) -> Name | None:
    """The checkpoint that two parts of a path name, if they do."""
    number, epoch = ATTEMPT.fullmatch(attempt), CHECKPOINT.fullmatch(leaf)
    return Name(int(epoch[1]), int(number[1]), leaf) if number and epoch else None
