"""The container of a worker that trains."""

from typing import Any

import msgspec

from holdfast.api.trainingjob import PodTemplate, TrainingJob
from holdfast.workloads.trainingjob.defaults import Defaults
from holdfast.workloads.trainingjob.environment import environment
from holdfast.workloads.trainingjob.monitor import METRICS_PORT, enabled_monitoring
from holdfast.workloads.trainingjob.networking import master_port, uses_rdma
from holdfast.workloads.trainingjob.resources import worker_resources
from holdfast.workloads.trainingjob.security import container_security
from holdfast.workloads.trainingjob.sidecar import trainer_probes
from holdfast.workloads.trainingjob.volumes import mounts

TRAINER = "trainer"


def trainer(job: TrainingJob, defaults: Defaults) -> dict[str, Any]:
    spec, overlay = job.spec, job.spec.pod_template or PodTemplate()
    optional = {
        "command": spec.command,
        "args": spec.args,
        "workingDir": defaults.working_directory(job.metadata),
        "imagePullPolicy": overlay.image_pull_policy,
    }
    return {
        "name": TRAINER,
        "image": spec.image or defaults.training_image(spec.framework),
        **{name: msgspec.to_builtins(value) for name, value in optional.items() if value},
        "env": environment(job, defaults),
        "ports": _ports(job),
        "resources": worker_resources(job, defaults),
        "securityContext": container_security(locks_memory=uses_rdma(job)),
        # Without a message of its own, the last lines of a failed container's log say why.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **trainer_probes(job),
        "volumeMounts": mounts(job),
    }


def _ports(job: TrainingJob) -> list[dict[str, Any]]:
    ports = [{"name": "master", "containerPort": master_port(job)}]
    watched = enabled_monitoring(job)
    if watched is not None:
        ports.append({"name": METRICS_PORT, "containerPort": watched.metrics_port})
    return ports
