"""What an operator asks of the cluster, in order."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, cast

from holdfast.api.meta import Key
from holdfast.cluster.protocol import Cluster, Resource

ASKED = ("get", "create", "replace", "patch", "patch_status", "delete")


class Asked(NamedTuple):
    verb: str
    plural: str
    target: str
    body: Any


class RecordingCluster:
    """Passes everything on to another cluster. Lists and watches are not recorded: they come with the start."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.asked: list[Asked] = []

    @property
    def cluster(self) -> Cluster:
        return cast("Cluster", self)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._cluster, name)
        return self._recorded(name, method) if name in ASKED else method

    def _recorded(self, verb: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(resource: Resource[Any], *args: Any, **options: Any) -> Any:
            target = args[0].name if isinstance(args[0], Key) else args[0]["metadata"].get("name", "")
            self.asked.append(Asked(verb, resource.plural, target, args[-1]))
            return await method(resource, *args, **options)

        return call

    def counts(self) -> Counter[tuple[str, str]]:
        return Counter((each.verb, each.plural) for each in self.asked)

    def states(self) -> list[str]:
        """Of the statuses that were written, without those that only say how long it has taken by now."""
        statuses = [each.body["status"] for each in self.asked if each.verb == "patch_status"]
        return [status.get("state", "") for status in statuses if "state" in status or "duration" not in status]

    def writes_but_status(self) -> list[tuple[str, str, str]]:
        quiet = ("get", "patch_status")
        return [each[:3] for each in self.asked if each.verb not in quiet and each.plural != "events"]
