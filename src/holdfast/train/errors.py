"""What can go wrong, in words for the person who reads the worker's log."""


class TrainError(Exception):
    """The root of what this package raises on purpose."""


class BadEnvironment(TrainError):
    """A variable that the process was started with can't be right."""


class CheckpointFailed(TrainError):
    """A checkpoint was not saved; nothing of it is left under a checkpoint's name."""
