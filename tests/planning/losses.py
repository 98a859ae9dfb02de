"""Which worker is found to be lost."""

from collections.abc import Iterable

from holdfast.api.builtin import Job, Node, Pod
from holdfast.planning.trainingjob.classes import WorkerFailure
from holdfast.planning.trainingjob.loss import find_failure
from holdfast.planning.trainingjob.observed import Observed
from tests.trainingjobs import node, training_job, worker, workers

RUNNING = training_job(status={"state": "Running"})
READY = node()
SILENT = node(ready=False)
ENDING = {"FailureTarget": "BackoffLimitExceeded"}


def lost(*pods: Pod, nodes: Iterable[Node] = (READY,), job: Job | None = None) -> WorkerFailure | None:
    seen = {each.metadata.name: each for each in nodes}
    return find_failure(Observed(job=RUNNING, current_job=job or workers(), pods=pods, nodes=seen))


def thrown_out(reason: str, message: str = "") -> Pod:
    return worker(0, {"phase": "Failed", "reason": reason, "message": message}, node="gpu-3")
