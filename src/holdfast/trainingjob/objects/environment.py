"""The environment variables of a worker: its rank in the gang, the framework's variables, the task."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.api.trainingjob import TrainingJob
from holdfast.pods.template import Defaults, escape_dollar
from holdfast.trainingjob.objects import names, resources, sidecar, storage
from holdfast.trainingjob.objects.resources import gpus_per_worker, master_port
from holdfast.trainingjob.objects.volumes import CONFIG_FOLDER

CONFIG_FILE = "config.json"
INDEX = "$(HOLDFAST_INDEX)"

Variable = dict[str, Any]


def environment(job: TrainingJob, defaults: Defaults) -> list[Variable]:
    """All variables of a worker, the user's last: a variable of the user replaces ours of the same name."""
    own = [msgspec.to_builtins(variable) for variable in job.spec.env]
    written = {variable["name"] for variable in own}
    ours = [
        index_variable(),
        *sidecar.shared_env(job),
        *({"name": name, "value": value} for name, value in _rank_env(job, defaults)),
        *({"name": name, "value": escape_dollar(value)} for name, value in _job_env(job)),
    ]
    return [variable for variable in ours if variable["name"] not in written] + own


def index_variable() -> Variable:
    # The Job controller appends its own JOB_COMPLETION_INDEX last, where $(…) of earlier variables can't use it.
    return {
        "name": "HOLDFAST_INDEX",
        "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{names.INDEX_LABEL}']"}},
    }


def _rank_env(job: TrainingJob, defaults: Defaults) -> Iterator[tuple[str, str]]:
    """What a worker knows about the other workers."""
    yield "HOLDFAST_ATTEMPT", str(names.attempt(job))
    yield from sidecar.progress_url(job, defaults)
    yield from resources.network_variables(job)
    yield from _framework(job)


def _job_env(job: TrainingJob) -> Iterator[tuple[str, str]]:
    """The worker's task."""
    yield "MODEL", job.spec.model
    yield "DATASET", job.spec.dataset
    yield from _hyperparameters(job)
    yield "CONFIG_FILE", f"{CONFIG_FOLDER}/{CONFIG_FILE}"
    yield from storage.checkpoint_env(job)
    if job.spec.monitoring is not None:
        if job.spec.monitoring.mlflow_tracking_uri:
            yield "MLFLOW_TRACKING_URI", job.spec.monitoring.mlflow_tracking_uri
        if job.spec.monitoring.wandb_project:
            yield "WANDB_PROJECT", job.spec.monitoring.wandb_project


def _framework(job: TrainingJob) -> Iterator[tuple[str, str]]:
    match str(job.spec.framework):
        case "tensorflow":
            yield "TF_CONFIG", _tf_config(job)
        case "jax":
            yield "JAX_COORDINATOR_ADDRESS", f"{names.worker_host(job, 0)}:{master_port(job)}"
            yield "JAX_NUM_PROCESSES", str(job.spec.num_workers)
            yield "JAX_PROCESS_ID", INDEX
        case _:
            yield from _pytorch(job)


def _pytorch(job: TrainingJob) -> Iterator[tuple[str, str]]:
    host, port, size = names.worker_host(job, 0), str(master_port(job)), str(job.spec.num_workers)
    yield "MASTER_ADDR", host
    yield "MASTER_PORT", port
    yield "WORLD_SIZE", size
    yield "RANK", INDEX
    yield "NODE_RANK", INDEX
    yield "LOCAL_RANK", "0"
    yield "LOCAL_WORLD_SIZE", "1"
    # torchrun reads its options from the PET_ variables and then starts one process for each GPU.
    yield "PET_NNODES", size
    yield "PET_NODE_RANK", INDEX
    yield "PET_NPROC_PER_NODE", str(max(gpus_per_worker(job.spec), 1))
    yield "PET_MASTER_ADDR", host
    yield "PET_MASTER_PORT", port


def _tf_config(job: TrainingJob) -> str:
    port = master_port(job)
    hosts = [f"{names.worker_host(job, index)}:{port}" for index in range(job.spec.num_workers)]
    workers = msgspec.json.encode(hosts).decode()
    return f'{{"cluster":{{"worker":{workers}}},"task":{{"type":"worker","index":{INDEX}}}}}'


def _hyperparameters(job: TrainingJob) -> Iterator[tuple[str, str]]:
    """One variable for each hyperparameter that is set: learningRate → LEARNING_RATE."""
    written = dict(msgspec.to_builtins(job.spec.hyperparameters)) if job.spec.hyperparameters else {}
    additional: dict[str, str] = written.pop("additionalParams", {})
    for name, value in written.items():
        yield re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper(), _text(value)
    for name, value in sorted(additional.items()):
        yield "PARAM_" + re.sub(r"[^A-Z0-9_]", "_", name.upper()), value


def _text(value: object) -> str:
    """Numbers and booleans as JSON writes them: true, 5e-5, 64."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
