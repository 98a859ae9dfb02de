"""Whether a worker has a sidecar, and how training and sidecar communicate: by a shared folder and ports of the pod."""

from collections.abc import Iterator
from typing import Any

from holdfast.api.reports import SIDECAR_PORT
from holdfast.api.trainingjob import TrainingJob, TrainingJobSpec
from holdfast.pods.template import Defaults
from holdfast.trainingjob.objects.storage import checkpoint_storage, is_volume

PORT, PROGRESS_PORT = SIDECAR_PORT, 8471
RUN_VOLUME = "holdfast-run"
RUN_FOLDER = "/holdfast"
RUN_MOUNT = {"name": RUN_VOLUME, "mountPath": RUN_FOLDER, "subPath": "run"}

# Grace periods of a worker's pod: Kubernetes' default, for a save on a volume, for a save that is uploaded.
GRACE_S, SAVING_GRACE_S, UPLOADING_GRACE_S = 30, 90, 180
PROBED_EVERY_S = 5
# A sidecar that crashes and restarts must not cost the training.
PROBES_MISSED = 36
# The probe fails when the attempt is over, or when the training has saved and must end.
STOPPED_WITHIN_S = 5


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
    if not has_sidecar(job):
        return
    yield {"name": "HOLDFAST_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    yield {"name": "HOLDFAST_JOB", "value": job.metadata.name}
    yield {"name": "HOLDFAST_NAMESPACE", "value": job.metadata.namespace}
    yield {"name": "PROGRESS_FILE", "value": f"{RUN_FOLDER}/progress.jsonl"}
    yield {"name": "HOLDFAST_NOTICE_FILE", "value": f"{RUN_FOLDER}/notice"}


def progress_url(job: TrainingJob, defaults: Defaults) -> Iterator[tuple[str, str]]:
    """Where the training may post its progress: on the loopback, or on the pod's IP if the pod shares its loopback.

    An IPv6 address would need brackets, which the kubelet does not add when it expands the variable.
    """
    if has_sidecar(job):
        template = job.spec.pod_template
        is_shared = defaults.shared_loopback or (template is not None and template.host_network)
        host = "$(HOLDFAST_POD_IP)" if is_shared else "127.0.0.1"
        yield "PROGRESS_URL", f"http://{host}:{PROGRESS_PORT}/progress"


def probe_handler(job: TrainingJob, name: str) -> dict[str, Any]:
    """A request of the kubelet to the sidecar. Clients that reach the pod without the job's uid are kept out."""
    return {"httpGet": {"path": f"/{job.metadata.uid}/{name}", "port": PORT}}


def trainer_probes(job: TrainingJob) -> dict[str, Any]:
    """How the sidecar stops a training that is over, and learns of a pod's termination before the training does.

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
