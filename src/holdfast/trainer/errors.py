"""How a training ends when it does not end well, and with which exit code."""

import errno
import signal

from holdfast.errors import HoldfastError


class TrainerError(HoldfastError):
    """The training failed; its text is the one line that the user reads."""

    exit_code = 1


class BadSetting(TrainerError):
    """What was asked for can't be done: trying again would not help."""

    exit_code = 2


# A disk that is full or does not answer may do so in the next attempt.
PASSING = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE)


def unusable(message: str, error: BaseException) -> TrainerError:
    """For a path that can't be used as it was asked for."""
    passes = isinstance(error, OSError) and error.errno in PASSING
    return TrainerError(message) if passes else BadSetting(message)


class Diverged(TrainerError):
    """The loss is no longer a number."""


class GroupError(TrainerError):
    """The workers could not find each other."""


class WorkerLost(GroupError):
    """Another worker went away without a word."""


class WorkerFailed(GroupError):
    """Another worker said why it ends; this one ends for the same reason."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Stopped(TrainerError):
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number
