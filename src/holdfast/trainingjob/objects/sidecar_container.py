"""The sidecar of a worker: it restores, saves and reports, so that a training image needs no change."""

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.api.checkpoint import Checkpoint
from holdfast.api.trainingjob import TrainingJob
from holdfast.pods.checkpoints import StoreAccess, store_access
from holdfast.pods.sidecar import (
    CONFIG_MOUNT,
    RUN_MOUNT,
    STATE_MOUNT,
    TOKEN_MOUNT,
    SidecarSpec,
    Variable,
    plain_variables,
    sidecar_container,
    sidecar_env,
    token_volume,
)
from holdfast.pods.template import Defaults, escape_dollar
from holdfast.trainingjob.objects import names, storage
from holdfast.trainingjob.objects.environment import index_variable
from holdfast.trainingjob.objects.resources import is_elastic, sidecar_resources
from holdfast.trainingjob.objects.services import enabled_monitoring
from holdfast.trainingjob.objects.sidecar import grace_s, has_sidecar, shared_env
from holdfast.trainingjob.objects.storage import resume_source, store_url

# The one variable among those of the training that the sidecar reads.
METRIC_NAMES = "HOLDFAST_METRIC_NAMES"


def sidecar(job: TrainingJob, defaults: Defaults) -> dict[str, Any] | None:
    """None for a job without a sidecar."""
    if not has_sidecar(job):
        return None
    spec = SidecarSpec(
        job=job.metadata,
        image=defaults.holdfast_image,
        env=(*_variables(job, defaults), *_store_access(job).env),
        mounts=_mounts(job),
        resources=sidecar_resources(job, defaults),
    )
    return sidecar_container(spec)


def sidecar_volumes(job: TrainingJob) -> list[dict[str, Any]]:
    """Volumes that no other container mounts: the pod's identity token and the store's credentials."""
    return [token_volume(), *_store_access(job).volumes] if has_sidecar(job) else []


def _mounts(job: TrainingJob) -> tuple[dict[str, Any], ...]:
    checkpoint_storage = storage.checkpoint_storage(job)
    return (
        CONFIG_MOUNT,
        *([storage.mount(job, checkpoint_storage)] if checkpoint_storage is not None else ()),
        RUN_MOUNT,
        STATE_MOUNT,
        TOKEN_MOUNT,
        *_store_access(job).mounts,
    )


def _store_access(job: TrainingJob) -> StoreAccess:
    """Access to the store of the checkpoints, and to the store of the first checkpoint to resume from."""
    checkpoint_storage, source = storage.checkpoint_storage(job), resume_source(job)
    own = store_access(checkpoint_storage) if checkpoint_storage is not None else StoreAccess()
    other = source.access if source is not None else StoreAccess()
    return own + other


def _variables(job: TrainingJob, defaults: Defaults) -> Iterator[Variable]:
    """The user's variables are for the training only, so that they can't break the sidecar."""
    yield index_variable()
    yield from shared_env(job)
    yield from plain_variables(_sidecar_env(job, defaults))
    yield from (msgspec.to_builtins(variable) for variable in job.spec.env if variable.name == METRIC_NAMES)


def _sidecar_env(job: TrainingJob, defaults: Defaults) -> Iterator[tuple[str, str]]:
    yield from sidecar_env(
        job.metadata,
        attempt=names.attempt(job),
        workers=job.spec.num_workers,
        is_elastic=is_elastic(job.spec),
        grace_s=grace_s(job),
    )
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
