"""What the provider asks of whoever runs the nodes."""

from datetime import datetime
from typing import Protocol

from msgspec import Struct


class LocalNodeSpec(Struct, frozen=True, kw_only=True):
    """What the node of a machine is like."""

    name: str
    zone: str
    uid: str
    """Of the ProvisionedInstance: a label of the node."""
    machine_type: str
    gpu_type: str = ""
    gpu_count: int = 0
    preemptible: bool = True


class NodeRunner(Protocol):
    """Nodes by name. Every method raises a `HoldfastError`, and may be called again."""

    async def start(self, node: LocalNodeSpec) -> None:
        """Have the node join the cluster; returns when it has. A node that runs is left as it is."""
        ...

    def announce(self, name: str, deadline: datetime) -> None:
        """Tell the node that it is taken back then, as a cloud tells its machine; also before it has started."""
        ...

    async def kill(self, name: str) -> None:
        """End the node and all its processes at once, as a loss of power does, and remove its disk.

        Nothing of it is left then but its Node. A node that does not run is no error.
        """
        ...
