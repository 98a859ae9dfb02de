"""What an engine gives the suite beside the protocol: machines, pods that end as told, and forgetting."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.protocol import Cluster, Resource

ROOMY = {"cpu": "16", "memory": "64Gi", "pods": "110"}


class Engine(Protocol):
    """One cluster under test. A second engine is one more class with these few methods."""

    cluster: Cluster

    async def namespace(self) -> str:
        """The name of a new, empty namespace."""
        ...

    async def add_node(
        self,
        name: str,
        *,
        resources: Mapping[str, str] = ROOMY,
        labels: Mapping[str, str] = {},
        taints: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """A machine that is ready and runs what is bound to it, until told otherwise."""
        ...

    async def freeze_node(self, name: str) -> None:
        """The machine neither runs nor stops pods any more, and nobody has noticed yet."""
        ...

    async def break_node(self, name: str) -> None:
        """The machine reports that it is not ready, and neither runs nor stops pods any more."""
        ...

    async def add_storage(self, storage_class: str, size: str) -> None:
        """Enough for one claim of that class; an engine that has storage for every claim adds none."""
        ...

    async def end_pod(self, pod: Key, *, exit_code: int = 0, ended: str = "", disrupted: bool = False) -> None:
        """Every container of a running pod ends with that code, at the time `ended` (now, when empty)."""
        ...

    async def show_again(self, pod: Key) -> None:
        """The pod is bound, and its machine does not start it: what plays the machine may have overlooked the pod."""
        ...

    async def token(self, pod: Pod, audience: str, *, account: str = "default") -> str:
        """A token of the account that the pod runs as, bound to the pod, as its machine would be given one for it."""
        ...

    async def forget(self, resource: Resource[Any]) -> None:
        """Versions of this custom resource from before now can no longer be watched from."""
        ...
