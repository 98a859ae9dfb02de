"""Whether a worker has a sidecar, and what its training is told and given because of it."""

from collections.abc import Iterator
from typing import Any

from holdfast.api.trainingjob import TrainingJob, TrainingJobSpec
from holdfast.pods import sidecar as pods_sidecar
from holdfast.pods.sidecar import GRACE_S, SAVING_GRACE_S, UPLOADING_GRACE_S
from holdfast.pods.template import Defaults
from holdfast.trainingjob.objects.storage import checkpoint_storage, is_volume


def has_sidecar(job: TrainingJob) -> bool:
    return needs_sidecar(job.spec)


def needs_sidecar(spec: TrainingJobSpec) -> bool:
    """By default there is a sidecar: any program may report progress.

    `monitoring.enabled: false` leaves the sidecar out, unless checkpoints or a policy need one.
    """
    checkpoint, monitoring = spec.checkpoint, spec.monitoring
    return (
        monitoring is None
        or monitoring.enabled
        or (checkpoint is not None and checkpoint.enabled)
        or spec.success_policy is not None
        or spec.progress_deadline_seconds is not None
    )


def grace_s(job: TrainingJob) -> int:
    """The grace period of a worker: the user's, else the time that a save needs. A worker that is done ends earlier."""
    template, storage = job.spec.pod_template, checkpoint_storage(job)
    if template is not None and template.termination_grace_period_seconds is not None:
        return template.termination_grace_period_seconds
    if storage is None:
        return GRACE_S
    return SAVING_GRACE_S if is_volume(storage) else UPLOADING_GRACE_S


def shared_env(job: TrainingJob) -> Iterator[dict[str, Any]]:
    """The environment variables of both containers; none without a sidecar."""
    if has_sidecar(job):
        yield from pods_sidecar.shared_env(job.metadata)


def progress_url(job: TrainingJob, defaults: Defaults) -> Iterator[tuple[str, str]]:
    if has_sidecar(job):
        template = job.spec.pod_template
        is_on_host = template is not None and template.host_network
        yield pods_sidecar.progress_url(shares_loopback=defaults.shared_loopback or is_on_host)


def trainer_probes(job: TrainingJob) -> dict[str, Any]:
    return pods_sidecar.trainer_probes(job.metadata) if has_sidecar(job) else {}
