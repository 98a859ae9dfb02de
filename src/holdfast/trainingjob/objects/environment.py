"""What surrounds a worker: environment variables (rank, framework, task), volumes, and ConfigMaps."""

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import yaml

from holdfast.api.reports import FILE as REPORTS_FILE
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_blocks import PodTemplate
from holdfast.pods.sidecar import CONFIG_FOLDER, CONFIG_MOUNT, CONFIG_VOLUME, RUN_MOUNT, RUN_VOLUME, Variable
from holdfast.pods.template import Defaults, Discovery, escape_dollar
from holdfast.trainingjob.objects import names, resources, sidecar, storage
from holdfast.trainingjob.objects.resources import backend, gpus_per_worker, master_port
from holdfast.trainingjob.objects.sidecar import has_sidecar

# The volumes of a worker: configuration, checkpoints, shared memory, and the user's own volumes.


SHARED_MEMORY_VOLUME = "holdfast-shm"
SHARED_MEMORY = "/dev/shm"  # noqa: S108  # the path inside the pod, where data loaders expect it


def volumes(job: TrainingJob) -> list[dict[str, Any]]:
    return [*(volume for volume, _ in _holdfast_volumes(job)), *msgspec.to_builtins(_pod_template(job).volumes)]


def mounts(job: TrainingJob) -> list[dict[str, Any]]:
    return [*(mount for _, mount in _holdfast_volumes(job)), *msgspec.to_builtins(_pod_template(job).volume_mounts)]


def _holdfast_volumes(job: TrainingJob) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each volume with its mount."""
    yield {"name": CONFIG_VOLUME, "configMap": {"name": names.config_map_name(job)}}, CONFIG_MOUNT
    if not _user_mounts_shared_memory(job):
        # The container runtime's /dev/shm has 64 MiB: too little for the batches that PyTorch's data loaders pass.
        yield (
            {"name": SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory"}},
            {"name": SHARED_MEMORY_VOLUME, "mountPath": SHARED_MEMORY},
        )
    checkpoint_storage = storage.checkpoint_storage(job)
    if checkpoint_storage is not None:
        yield storage.volume(job, checkpoint_storage), storage.mount(job, checkpoint_storage)
    if has_sidecar(job):
        yield {"name": RUN_VOLUME, "emptyDir": {}}, RUN_MOUNT


def _user_mounts_shared_memory(job: TrainingJob) -> bool:
    return any(posixpath.normpath(mount.mount_path) == SHARED_MEMORY for mount in _pod_template(job).volume_mounts)


def _pod_template(job: TrainingJob) -> PodTemplate:
    return job.spec.pod_template or PodTemplate()


CONFIG_FILE = "config.json"
INDEX = "$(HOLDFAST_INDEX)"


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
    yield from _framework(job, defaults.discovery)


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


def _framework(job: TrainingJob, discovery: Discovery) -> Iterator[tuple[str, str]]:
    match str(job.spec.framework):
        case "tensorflow":
            yield "TF_CONFIG", _tf_config(job, discovery)
        case "jax":
            yield "JAX_COORDINATOR_ADDRESS", f"{names.worker_host(job, 0, discovery)}:{master_port(job)}"
            yield "JAX_NUM_PROCESSES", str(job.spec.num_workers)
            yield "JAX_PROCESS_ID", INDEX
        case _:
            yield from _pytorch(job, discovery)


def _pytorch(job: TrainingJob, discovery: Discovery) -> Iterator[tuple[str, str]]:
    host, port, size = names.worker_host(job, 0, discovery), str(master_port(job)), str(job.spec.num_workers)
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


def _tf_config(job: TrainingJob, discovery: Discovery) -> str:
    port = master_port(job)
    hosts = [f"{names.worker_host(job, index, discovery)}:{port}" for index in range(job.spec.num_workers)]
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


# The ConfigMaps of a job: its configuration for the workers, as JSON and as YAML, and the saved logs of workers.


YAML_FILE = "config.yaml"
_PLAIN_TEXT = re.compile(r"[A-Za-z]{2}[ -~]*")


def config_map(job: TrainingJob, reports: str | None = None) -> dict[str, Any]:
    """`reports` is the report endpoint for the sidecars, as `holdfast.api.reports` encodes it."""
    # An API server returns maps in another order than they were written in.
    hyperparameters = msgspec.to_builtins(job.spec.hyperparameters, order="deterministic")
    task = {
        "name": job.metadata.name,
        "namespace": job.metadata.namespace,
        "model": job.spec.model,
        "dataset": job.spec.dataset,
        "framework": str(job.spec.framework),
        "hyperparameters": hyperparameters or {},
        "networking": {"backend": backend(job), "masterPort": master_port(job)},
    }
    data = {
        CONFIG_FILE: msgspec.json.format(msgspec.json.encode(task)).decode() + "\n",
        YAML_FILE: yaml.dump(task, Dumper=_Dumper, sort_keys=False, allow_unicode=True),
    }
    if reports is not None and has_sidecar(job):
        data[REPORTS_FILE] = reports
    return {"metadata": names.metadata(job, names.config_map_name(job)), "data": data}


class _Dumper(yaml.SafeDumper):
    """Quotes every string that some YAML parser could read as another type: 1e-4, 0o7, y."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if _PLAIN_TEXT.fullmatch(text) else '"')


_Dumper.add_representer(str, _represent_text)


# The ConfigMap that stores the end of a worker's log after its pod is deleted.

# The worker's index; every ConfigMap with this label is a saved log.
WORKER_LABEL = "holdfast.dev/log-of-worker"
LOG = "log"
# The logs of earlier pods of the same attempt, which were stopped when the job was suspended.
EARLIER = "earlier"
POD = "pod"
FINISHED_AT = "finishedAt"
MAX_LOG_BYTES = 64 * 1024


def log_name(job: TrainingJob, number: int, index: int) -> str:
    return f"{job.metadata.name}-log-{number}-{index}"


def worker_log_config_map(
    job: TrainingJob,
    index: int,
    text: bytes,
    facts: Mapping[str, str],
    *,
    number: int | None = None,
    stored: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The log of a worker of attempt `number`, by default the current attempt.

    `facts` are how and where the worker ended, as far as known; `stored` is the present data of the ConfigMap.
    """
    number = names.attempt(job) if number is None else number
    # Without the label that the operator's informers select: thousands of logs would fill its caches for nothing.
    labels = {names.JOB_LABEL: job.metadata.name, names.ATTEMPT_LABEL: str(number), WORKER_LABEL: str(index)}
    known = {name: value for name, value in facts.items() if value}
    if earlier_logs := _earlier_logs(stored or {}, facts.get(POD, "")):
        known[EARLIER] = earlier_logs
    return {
        "metadata": names.metadata(job, log_name(job, number, index), labelled=labels),
        "data": {**known, LOG: _tail(text).decode(errors="replace")},
    }


def is_newer(stored: Mapping[str, str], facts: Mapping[str, str]) -> bool:
    """Whether a log adds to the stored data: it is from another pod, or the same pod has ended since."""
    return stored.get(POD) != facts.get(POD) or (FINISHED_AT not in stored and bool(facts.get(FINISHED_AT)))


def _earlier_logs(stored: Mapping[str, str], pod: str) -> str:
    earlier = stored.get(EARLIER, "")
    if stored.get(POD) != pod:
        earlier += stored.get(LOG, "")
    return _tail(earlier.encode()).decode(errors="replace")


def _tail(text: bytes) -> bytes:
    return text[-MAX_LOG_BYTES:]


def worker_log_selector(name: str) -> str:
    """Selects the saved logs of all jobs of this name; the owner reference tells jobs of the same name apart."""
    return f"{names.JOB_LABEL}={name},{WORKER_LABEL}"
