"""The sidecar of a worker: it restores, saves and reports, so that a training image needs no change."""

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.api.checkpoint import Checkpoint
from holdfast.api.reports import AUDIENCE
from holdfast.api.reports import FILE as REPORTS_FILE
from holdfast.api.trainingjob import TrainingJob
from holdfast.pods.template import SIDECAR_CONTAINER, Defaults, container_security, escape_dollar
from holdfast.trainingjob.objects import names, storage
from holdfast.trainingjob.objects.environment import CONFIG_FOLDER, CONFIG_MOUNT, Variable, index_variable
from holdfast.trainingjob.objects.resources import is_elastic, sidecar_resources
from holdfast.trainingjob.objects.services import enabled_monitoring
from holdfast.trainingjob.objects.sidecar import (
    PORT,
    PROBED_EVERY_S,
    PROGRESS_PORT,
    RUN_MOUNT,
    RUN_VOLUME,
    grace_s,
    has_sidecar,
    probe_handler,
    shared_env,
)
from holdfast.trainingjob.objects.storage import StoreAccess, resume_source, store_access, store_url

STATE_FOLDER = "/holdfast-state"
TOKEN_VOLUME = "holdfast-token"  # noqa: S105  # the name of a volume, not a token
TOKEN_FOLDER = "/var/run/secrets/holdfast"  # noqa: S105
TOKEN_FILE = "token"  # noqa: S105
TOKEN_LIFE_S = 3600
# Even the largest checkpoint is restored within a week.
STARTED_WITHIN_S = 7 * 24 * 3600
# The one variable among those of the training that the sidecar reads.
METRIC_NAMES = "HOLDFAST_METRIC_NAMES"


def sidecar(job: TrainingJob, defaults: Defaults) -> dict[str, Any] | None:
    """A native sidecar; the training starts when its startup probe passes. None for a job without a sidecar."""
    if not has_sidecar(job):
        return None
    return {
        "name": SIDECAR_CONTAINER,
        "image": defaults.holdfast_image,
        "command": ["holdfast", "sidecar"],
        "restartPolicy": "Always",
        "env": [*_variables(job, defaults), *_store_access(job).env],
        # With hostNetwork, the declared ports keep the scheduler from binding two workers to one node.
        "ports": [{"name": "sidecar", "containerPort": PORT}, {"name": "progress", "containerPort": PROGRESS_PORT}],
        "startupProbe": {
            **probe_handler(job, "started"),
            "periodSeconds": 1,
            "timeoutSeconds": PROBED_EVERY_S,
            "failureThreshold": STARTED_WITHIN_S,
        },
        "resources": sidecar_resources(job, defaults),
        "securityContext": {**container_security(), "readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(job),
    }


def sidecar_volumes(job: TrainingJob) -> list[dict[str, Any]]:
    """Volumes that no other container mounts: the pod's identity token and the store's credentials."""
    if not has_sidecar(job):
        return []
    token = {"audience": AUDIENCE, "expirationSeconds": TOKEN_LIFE_S, "path": TOKEN_FILE}
    return [
        {"name": TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}},
        *_store_access(job).volumes,
    ]


def _mounts(job: TrainingJob) -> list[dict[str, Any]]:
    checkpoint_storage = storage.checkpoint_storage(job)
    return [
        CONFIG_MOUNT,
        *([storage.mount(job, checkpoint_storage)] if checkpoint_storage is not None else ()),
        RUN_MOUNT,
        {"name": RUN_VOLUME, "mountPath": STATE_FOLDER, "subPath": "state"},
        {"name": TOKEN_VOLUME, "mountPath": TOKEN_FOLDER, "readOnly": True},
        *_store_access(job).mounts,
    ]


def _store_access(job: TrainingJob) -> StoreAccess:
    """Access to the store of the checkpoints, and to the store of the first checkpoint to resume from."""
    checkpoint_storage, source = storage.checkpoint_storage(job), resume_source(job)
    own = store_access(checkpoint_storage) if checkpoint_storage is not None else StoreAccess()
    other = source.access if source is not None else StoreAccess()
    return StoreAccess(env=own.env + other.env, volumes=own.volumes + other.volumes, mounts=own.mounts + other.mounts)


def _variables(job: TrainingJob, defaults: Defaults) -> Iterator[Variable]:
    """The user's variables are for the training only, so that they can't break the sidecar."""
    yield index_variable()
    yield from shared_env(job)
    yield from ({"name": name, "value": value} for name, value in _sidecar_env(job, defaults))
    yield from (msgspec.to_builtins(variable) for variable in job.spec.env if variable.name == METRIC_NAMES)


def _sidecar_env(job: TrainingJob, defaults: Defaults) -> Iterator[tuple[str, str]]:
    yield "HOLDFAST_JOB_UID", job.metadata.uid
    yield "HOLDFAST_ATTEMPT", str(names.attempt(job))
    yield "HOLDFAST_WORKERS", str(job.spec.num_workers)
    if is_elastic(job.spec):
        yield "HOLDFAST_ELASTIC", "true"
    yield "HOLDFAST_GRACE_SECONDS", str(grace_s(job))
    yield "HOLDFAST_STATE_DIR", STATE_FOLDER
    yield "HOLDFAST_REPORTS_FILE", f"{CONFIG_FOLDER}/{REPORTS_FILE}"
    yield "HOLDFAST_TOKEN_FILE", f"{TOKEN_FOLDER}/{TOKEN_FILE}"
    yield "TERMINATION_LOG", "/dev/termination-log"
    monitoring = enabled_monitoring(job)
    if monitoring is not None:
        yield "METRICS_PORT", str(monitoring.metrics_port)
    if job.spec.checkpoint is not None and job.spec.checkpoint.enabled:
        yield from _checkpoint_env(job, job.spec.checkpoint, defaults)


def _checkpoint_env(job: TrainingJob, checkpoint: Checkpoint, defaults: Defaults) -> Iterator[tuple[str, str]]:
    yield from storage.folder_env(job)
    yield "HOLDFAST_RETENTION", str(checkpoint.retention)
    if (metric := storage.best_by(job)) != "loss":
        yield "HOLDFAST_BEST_BY", metric
    checkpoint_storage, source = storage.checkpoint_storage(job), resume_source(job)
    if checkpoint_storage is not None and not storage.is_volume(checkpoint_storage):
        yield "HOLDFAST_STORE", escape_dollar(store_url(job, checkpoint_storage))
        yield from ((name, value) for name, value in storage.checkpoint_env(job) if name == "TENSORBOARD_DIR")
    if source is not None:
        yield "HOLDFAST_RESUME_FROM", escape_dollar(source.address)
        # Only where it matters: another list must not change the pods of other jobs.
        if source.address.startswith("oci://") and defaults.plain_http_registries:
            yield "HOLDFAST_PLAIN_HTTP_REGISTRIES", ",".join(defaults.plain_http_registries)
