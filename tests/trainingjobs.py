"""TrainingJobs and what is seen of them, for tests: every function takes only what the test is about."""

from typing import Any

import msgspec

from holdfast.api.builtin import Job, Pod
from holdfast.api.trainingjob import TrainingJob

UID = "11111111-2222-3333-4444-555555555555"


def training_job(spec: dict[str, Any] | None = None, *, status: dict[str, Any] | None = None) -> TrainingJob:
    """A TrainingJob `ml/bert` of two workers, with whatever else is given."""
    body = {
        "metadata": {"name": "bert", "namespace": "ml", "uid": UID, "generation": 3, "resourceVersion": "7"},
        "spec": {"model": "cnn", "dataset": "mnist", "numWorkers": 2, **(spec or {})},
    }
    if status is not None:
        body["status"] = status
    return msgspec.convert(body, TrainingJob)


def workers(
    *, status: dict[str, Any] | None = None, name: str = "bert-training", conditions: dict[str, str] | None = None
) -> Job:
    """The workers' Job; `conditions` are the types that hold, each with its reason."""
    held = [
        {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": "as told",
            "lastTransitionTime": "2026-01-01T02:13:20Z",
        }
        for kind, reason in (conditions or {}).items()
    ]
    started = {"startTime": "2026-01-01T00:00:00Z"}
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "ml", "uid": f"uid-of-{name}"},
            "spec": {"parallelism": 2, "completions": 2},
            "status": {**started, **(status or {}), "conditions": held},
        },
        Job,
    )


def worker(index: int, status: dict[str, Any], *, node: str = "") -> Pod:
    return msgspec.convert(
        {
            "metadata": {
                "name": f"bert-training-{index}-abcde",
                "namespace": "ml",
                "labels": {"batch.kubernetes.io/job-completion-index": str(index), "training-job": "bert"},
            },
            "spec": {"nodeName": node},
            "status": status,
        },
        Pod,
    )


def unschedulable(index: int, message: str) -> Pod:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return worker(index, {"phase": "Pending", "conditions": [condition]})


def failed(
    index: int, exit_code: int, *, at: str, node: str = "gpu-3", reason: str = "Error", message: str = ""
) -> Pod:
    end = {"exitCode": exit_code, "reason": reason, "message": message, "finishedAt": at}
    container = {"name": "trainer", "state": {"terminated": end}}
    return worker(index, {"phase": "Failed", "containerStatuses": [container]}, node=node)
