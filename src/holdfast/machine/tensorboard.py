"""TensorBoard, on a machine whose pods share one network and which need not have it."""

import shutil

from holdfast.machine.trouble import RetryLater

TENSORBOARD = "tensorboard"
EVERYWHERE = "--bind_all"


class NotInstalled(RetryLater):
    """A program that an image would bring along is not on this machine."""

    reason = "CreateContainerError"


def adapted_to_tensorboard(argv: tuple[str, ...], *, address: str, path: str) -> tuple[str, ...]:
    """The command, listening on the pod's own address: two jobs may have theirs at one port, and nobody else sees it.

    Any other command stays as it is. Raises `NotInstalled`, for the pod to wait until it is.
    """
    if argv[0] != TENSORBOARD:
        return argv
    if shutil.which(TENSORBOARD, path=path) is None:
        raise NotInstalled(
            f"{TENSORBOARD} is not on this machine: install it beside holdfast (pip install {TENSORBOARD}), and "
            "the pod starts by itself"
        )
    return tuple(f"--host={address}" if word == EVERYWHERE else word for word in argv)
