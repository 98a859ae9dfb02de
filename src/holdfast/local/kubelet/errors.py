"""Why a container does not run, and whether a retry can help."""

from holdfast.errors import HoldfastError


class RetryLater(HoldfastError):
    """A missing dependency may still appear: the pod waits and retries. `reason` is what kubectl shows."""

    reason = "ContainerCreating"


class ConfigError(RetryLater):
    """The configuration of a container refers to an object or key that does not exist (yet)."""

    reason = "CreateContainerConfigError"


class PodRejected(HoldfastError):
    """This node will never run the pod with this spec. `reason` goes into the pod's status."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
