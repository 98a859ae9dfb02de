"""The ConfigMap that tells the workers what to train, as one JSON file."""

from typing import Any

import msgspec

from holdfast.api.trainingjob import TrainingJob
from holdfast.workloads.trainingjob import names
from holdfast.workloads.trainingjob.environment import CONFIG_FILE, backend, master_port


def config_map(job: TrainingJob) -> dict[str, Any]:
    hyperparameters = msgspec.to_builtins(job.spec.hyperparameters) if job.spec.hyperparameters else {}
    task = {
        "name": job.metadata.name,
        "namespace": job.metadata.namespace,
        "model": job.spec.model,
        "dataset": job.spec.dataset,
        "framework": str(job.spec.framework),
        "hyperparameters": hyperparameters,
        "networking": {"backend": backend(job), "masterPort": master_port(job)},
    }
    text = msgspec.json.format(msgspec.json.encode(task)).decode()
    return {"metadata": names.metadata(job, names.config(job)), "data": {CONFIG_FILE: text + "\n"}}
