"""The logs of workers whose pods are gone, as the operator kept them."""

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from msgspec import Struct, structs

from holdfast.api.builtin import ConfigMap, ContainerStateTerminated
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CONFIG_MAPS
from holdfast.planning.trainingjob.exits import how
from holdfast.workloads.trainingjob.container import TRAINER
from holdfast.workloads.trainingjob.last_logs import EARLIER, LOG, POD, WORKER_LABEL, worker_log_selector
from holdfast.workloads.trainingjob.names import ATTEMPT_LABEL


class SavedLog(Struct, frozen=True, kw_only=True):
    attempt: int
    index: int
    text: bytes
    earlier: bytes = b""
    """What pods before the last one wrote in the same attempt."""
    pod: str = ""
    container: str
    end: str
    """How the worker ended and where, as far as that is known."""

    def __str__(self) -> str:
        who = f"worker {self.index} of attempt {self.attempt}"
        if self.container != TRAINER:
            who = f"container {self.container} of {who}"
        return f"{who}{self.end}: the end of its log, as it was kept"

    def before(self, pod: str) -> "SavedLog | None":
        """What was written before that pod of the same worker and attempt."""
        text = self.earlier + (self.text if self.pod and self.pod != pod else b"")
        return structs.replace(self, earlier=b"", text=text) if text else None

    def is_of(self, container: str) -> bool:
        """Of the container asked for; "" asks for none in particular."""
        return container in ("", self.container)


async def find_saved_logs(cluster: Cluster, job: TrainingJob) -> list[SavedLog]:
    """All that are kept of this job, in the order of attempts and workers."""
    metadata = job.metadata
    found = (
        await cluster.list(CONFIG_MAPS, namespace=metadata.namespace, labels=worker_log_selector(metadata.name))
    ).items
    own = [each for each in found if each.metadata.controller and each.metadata.controller.uid == metadata.uid]
    return sorted(map(_kept, own), key=attrgetter("attempt", "index"))


def list_available(kept: Iterable[SavedLog]) -> str:
    """For someone who asked for another one."""
    attempts = []
    for attempt, each in groupby(kept, attrgetter("attempt")):
        indexes = [str(one.index) for one in each]
        attempts.append(f"attempt {attempt} (worker{'s' if len(indexes) > 1 else ''} {', '.join(indexes)})")
    return f"logs are kept of {', '.join(attempts)}" if attempts else "no log of a failed worker is kept"


def _kept(config_map: ConfigMap) -> SavedLog:
    labels, data = config_map.metadata.labels, config_map.data
    code = data.get("exitCode", "")
    end = f" {how(ContainerStateTerminated(exit_code=int(code), reason=data.get('reason', '')))}" if code else ""
    end += f" on {data['node']}" if "node" in data else ""
    end += f" at {data['finishedAt']}" if "finishedAt" in data else ""
    return SavedLog(
        attempt=_number(labels.get(ATTEMPT_LABEL, "")),
        index=_number(labels.get(WORKER_LABEL, "")),
        text=data.get(LOG, "").encode(),
        earlier=data.get(EARLIER, "").encode(),
        pod=data.get(POD, ""),
        container=data.get("container", ""),
        end=end,
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else -1
