"""The logs of workers whose pods are gone, as the operator saved them."""

from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby
from operator import attrgetter

from msgspec import Struct, structs

from holdfast.api.core.objects import ConfigMap, ContainerStateTerminated, Pod
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.errors import ClusterError
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CONFIG_MAPS, TRAINING_JOBS
from holdfast.pods.failure import exit_text
from holdfast.trainingjob.objects.environment import EARLIER, LOG, POD, WORKER_LABEL, worker_log_selector
from holdfast.trainingjob.objects.job import TRAINER
from holdfast.trainingjob.objects.names import ATTEMPT_LABEL, INDEX_LABEL, JOB_LABEL


class SavedLog(Struct, frozen=True, kw_only=True):
    """The log of a worker whose pod is gone, as the operator saved it."""

    attempt: int
    index: int
    text: bytes
    earlier: bytes = b""
    """The output of earlier pods of the worker in the same attempt."""
    pod: str = ""
    container: str
    end: str
    """How and where the worker ended, as far as known."""

    def __str__(self) -> str:
        who = f"worker {self.index} of attempt {self.attempt}"
        if self.container != TRAINER:
            who = f"container {self.container} of {who}"
        return f"{who}{self.end}: the end of its log, as it was kept"

    def before(self, pod: str) -> "SavedLog | None":
        """The output of earlier pods of the same worker and attempt."""
        text = self.earlier + (self.text if self.pod and self.pod != pod else b"")
        return structs.replace(self, earlier=b"", text=text) if text else None

    def is_of(self, container: str) -> bool:
        """Whether the log is of the requested container; "" matches every container."""
        return container in ("", self.container)


async def find_saved_logs(cluster: Cluster, job: TrainingJob) -> list[SavedLog]:
    """All saved logs of the job, in the order of attempts and workers."""
    metadata = job.metadata
    found = (
        await cluster.list(CONFIG_MAPS, namespace=metadata.namespace, labels=worker_log_selector(metadata.name))
    ).items
    own = [each for each in found if each.metadata.controller and each.metadata.controller.uid == metadata.uid]
    return sorted(map(_saved_log, own), key=attrgetter("attempt", "index"))


async def find_saved_log(cluster: Cluster, pod: Pod, container: str) -> SavedLog | None:
    """The log that was saved of the pod's worker in the pod's attempt."""
    labels = pod.metadata.labels
    with suppress(ClusterError):
        job = await cluster.get(TRAINING_JOBS, Key(pod.metadata.namespace, labels.get(JOB_LABEL, "")))
        same = (labels.get(ATTEMPT_LABEL), labels.get(INDEX_LABEL))
        for each in await find_saved_logs(cluster, job):
            if (str(each.attempt), str(each.index)) == same and each.is_of(container):
                return each
    return None


def list_available(saved: Iterable[SavedLog]) -> str:
    """A list of the available logs, for the error about a missing log."""
    attempts = []
    for number, each in groupby(saved, attrgetter("attempt")):
        indexes = [str(log.index) for log in each]
        attempts.append(f"attempt {number} (worker{'s' if len(indexes) > 1 else ''} {', '.join(indexes)})")
    return f"logs are kept of {', '.join(attempts)}" if attempts else "no log of a failed worker is kept"


def _saved_log(config_map: ConfigMap) -> SavedLog:
    labels, data = config_map.metadata.labels, config_map.data
    code = data.get("exitCode", "")
    end = f" {exit_text(ContainerStateTerminated(exit_code=int(code), reason=data.get('reason', '')))}" if code else ""
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
