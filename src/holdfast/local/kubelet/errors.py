"""Why a container does not run, and whether waiting can help."""

from holdfast.errors import HoldfastError


class RetryLater(HoldfastError):
    """Something is missing that may still come: the pod waits and tries again. `reason` is what kubectl shows."""

    reason = "ContainerCreating"


class ConfigError(RetryLater):
    """A container's configuration points to what is not there (yet)."""

    reason = "CreateContainerConfigError"


class PodRejected(HoldfastError):
    """This machine will never run the pod as it is written. `reason` goes into the pod's status."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
