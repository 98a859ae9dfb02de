"""Which worker is found to be lost."""

from collections.abc import Iterable

from holdfast.api.core.objects import Job, Node, Pod
from holdfast.pods.failure import WorkerFailure
from holdfast.trainingjob.decide.failure import find_failure
from holdfast.trainingjob.decide.snapshot import TrainingJobSnapshot
from tests.trainingjobs import node, training_job, worker, workers

RUNNING = training_job(status={"state": "Running"})
READY = node()
SILENT = node(ready=False)
ENDING = {"FailureTarget": "BackoffLimitExceeded"}


def lost(*pods: Pod, nodes: Iterable[Node] = (READY,), job: Job | None = None) -> WorkerFailure | None:
    seen = {each.metadata.name: each for each in nodes}
    return find_failure(TrainingJobSnapshot(job=RUNNING, current_job=job or workers(), pods=pods, nodes=seen))


def thrown_out(reason: str, message: str = "") -> Pod:
    return worker(0, {"phase": "Failed", "reason": reason, "message": message}, node="gpu-3")
