"""What differs between the container runtimes that create containers from checkpoint images."""

from enum import StrEnum
from typing import NamedTuple, Protocol


class Fault(StrEnum):
    """What has to change before a container can be created from its checkpoint image."""

    NODE = "node"
    """Its runtime: another node may do."""
    BASE_IMAGE = "baseImage"
    """The image that the container was made of is not on the node, and can't be fetched."""
    IMAGE = "image"
    """The checkpoint itself, or how it fits the pod: it is the same on every node of this kind."""


class Refusal(NamedTuple):
    """A message of the runtime, understood. `advice` says what would change it."""

    fault: Fault
    advice: str


class RestoreRuntime(Protocol):
    """One runtime. Its messages reach us through the kubelet, as the reason why a container does not run."""

    @property
    def name(self) -> str:
        """As nodes and images name it, in lower case."""
        ...

    @property
    def switch(self) -> str:
        """What an administrator sets on the node, as a sentence goes on after "set"."""
        ...

    def obstacle(self, version: tuple[int, ...]) -> str:
        """Why this version creates no containers from checkpoints, or should not be let do it; empty if it may."""
        ...

    def refusal(self, message: str) -> Refusal | None:
        """None for a message that has nothing to do with checkpoints."""
        ...
