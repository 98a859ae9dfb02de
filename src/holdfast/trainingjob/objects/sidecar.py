"""Whether a worker has a sidecar, and how the training and it know each other: by a folder, and by doors of the pod."""

from collections.abc import Iterator
from typing import Any

from holdfast.api.trainingjob import TrainingJob, TrainingJobSpec
from holdfast.pods.template import Defaults
from holdfast.trainingjob.objects.storage import checkpoint_storage, is_volume

CONTAINER = "holdfast-sidecar"
PORT, PROGRESS_PORT = 8470, 8471
RUN_VOLUME = "holdfast-run"
RUN_FOLDER = "/holdfast"
RUN_MOUNT = {"name": RUN_VOLUME, "mountPath": RUN_FOLDER, "subPath": "run"}

# What a worker's pod has to end by: Kubernetes' default, a save on a volume, a save that is uploaded.
GRACE_S, SAVING_GRACE_S, UPLOADING_GRACE_S = 30, 90, 180
PROBED_EVERY_S = 5
# A sidecar that dies and starts anew must not cost the training.
PROBES_MISSED = 36
# The probe fails when the attempt is over, or when the training has saved and is to end.
STOPPED_WITHIN_S = 5


def has_sidecar(job: TrainingJob) -> bool:
    return needs_sidecar(job.spec)


def needs_sidecar(spec: TrainingJobSpec) -> bool:
    """By default there is a sidecar: any program may report progress.

    `monitoring.enabled: false` leaves the sidecar out, unless checkpoints or a policy need one.
    """
    kept, watched = spec.checkpoint, spec.monitoring
    return (
        watched is None
        or watched.enabled
        or (kept is not None and kept.enabled)
        or spec.success_policy is not None
        or spec.progress_deadline_seconds is not None
    )


def grace_s(job: TrainingJob) -> int:
    """How long a worker may take to end: as the user writes, else what a save needs. One that is done ends earlier."""
    template, kept = job.spec.pod_template, checkpoint_storage(job)
    if template is not None and template.termination_grace_period_seconds is not None:
        return template.termination_grace_period_seconds
    if kept is None:
        return GRACE_S
    return SAVING_GRACE_S if is_volume(kept) else UPLOADING_GRACE_S


def shared_env(job: TrainingJob) -> Iterator[dict[str, Any]]:
    """What both containers are told; nothing without a sidecar."""
    if not has_sidecar(job):
        return
    yield {"name": "HOLDFAST_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    yield {"name": "HOLDFAST_JOB", "value": job.metadata.name}
    yield {"name": "HOLDFAST_NAMESPACE", "value": job.metadata.namespace}
    yield {"name": "PROGRESS_FILE", "value": f"{RUN_FOLDER}/progress.jsonl"}
    yield {"name": "HOLDFAST_NOTICE_FILE", "value": f"{RUN_FOLDER}/notice"}


def progress_url(job: TrainingJob, defaults: Defaults) -> Iterator[tuple[str, str]]:
    """Where the training may post its progress: on the loopback, or on the pod's address where that is not its own.

    An IPv6 address would need brackets, and the kubelet that fills it in sets none.
    """
    if has_sidecar(job):
        template = job.spec.pod_template
        is_shared = defaults.shared_loopback or (template is not None and template.host_network)
        host = "$(HOLDFAST_POD_IP)" if is_shared else "127.0.0.1"
        yield "PROGRESS_URL", f"http://{host}:{PROGRESS_PORT}/progress"


def probe_handler(job: TrainingJob, name: str) -> dict[str, Any]:
    """What the kubelet asks the sidecar. The job's uid keeps out who can reach the pod and does not know it."""
    return {"httpGet": {"path": f"/{job.metadata.uid}/{name}", "port": PORT}}


def trainer_probes(job: TrainingJob) -> dict[str, Any]:
    """How the sidecar stops a training that is over, and hears of a pod's end before the training does.

    The kubelet signals a native sidecar only after the training has exited, and no container can signal another.
    """
    if not has_sidecar(job):
        return {}
    live = {
        **probe_handler(job, "live"),
        "periodSeconds": PROBED_EVERY_S,
        "timeoutSeconds": PROBED_EVERY_S,
        "failureThreshold": PROBES_MISSED,
        "terminationGracePeriodSeconds": STOPPED_WITHIN_S,
    }
    return {"livenessProbe": live, "lifecycle": {"preStop": probe_handler(job, "prestop")}}
