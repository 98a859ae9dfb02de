"""The pod template of a worker."""

from typing import Any

import msgspec

from holdfast.api.trainingjob import PodTemplate, TrainingJob
from holdfast.workloads.trainingjob import names
from holdfast.workloads.trainingjob.environment import CONFIG_FOLDER, environment, master_port
from holdfast.workloads.trainingjob.gpus import worker_resources

CONTAINER = "trainer"
CONFIG_VOLUME = "holdfast-config"
# The restricted profile of the Pod Security Standards; podTemplate.securityContext replaces fields of it.
POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "fsGroup": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def pod_template(job: TrainingJob, default_image: str) -> dict[str, Any]:
    overlay = job.spec.pod_template or PodTemplate()
    metadata: dict[str, Any] = {"labels": {**overlay.labels, **names.labels(job)}}
    if overlay.annotations:
        metadata["annotations"] = dict(overlay.annotations)
    return {"metadata": metadata, "spec": _pod_spec(job, overlay, default_image)}


def _pod_spec(job: TrainingJob, overlay: PodTemplate, default_image: str) -> dict[str, Any]:
    own_security = msgspec.to_builtins(overlay.security_context) if overlay.security_context else {}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "subdomain": names.headless(job),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {**POD_SECURITY, **own_security},
        "containers": [_container(job, overlay, default_image)],
        "volumes": [
            {"name": CONFIG_VOLUME, "configMap": {"name": names.config(job)}},
            *msgspec.to_builtins(overlay.volumes),
        ],
    }
    optional = {
        "imagePullSecrets": overlay.image_pull_secrets,
        "serviceAccountName": overlay.service_account_name,
        "runtimeClassName": overlay.runtime_class_name,
        "hostNetwork": overlay.host_network,
        "topologySpreadConstraints": overlay.topology_spread_constraints,
        "terminationGracePeriodSeconds": overlay.termination_grace_period_seconds,
        **_scheduling(job),
    }
    spec |= {name: msgspec.to_builtins(value) for name, value in optional.items() if value or value == 0}
    return spec


def _scheduling(job: TrainingJob) -> dict[str, Any]:
    wishes = job.spec.scheduling
    if wishes is None:
        return {}
    return {
        "priorityClassName": wishes.priority,
        "nodeSelector": wishes.node_selector,
        "affinity": wishes.affinity,
        "tolerations": wishes.tolerations,
    }


def _container(job: TrainingJob, overlay: PodTemplate, default_image: str) -> dict[str, Any]:
    spec = job.spec
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": spec.image or default_image,
        "env": environment(job),
        "ports": _ports(job),
        "resources": worker_resources(spec),
        "securityContext": CONTAINER_SECURITY,
        # Without a message of its own, the last lines of a failed worker's log say why.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": CONFIG_VOLUME, "mountPath": CONFIG_FOLDER, "readOnly": True},
            *msgspec.to_builtins(overlay.volume_mounts),
        ],
    }
    optional = {"command": spec.command, "args": spec.args, "imagePullPolicy": overlay.image_pull_policy}
    container |= {name: msgspec.to_builtins(value) for name, value in optional.items() if value}
    return container


def _ports(job: TrainingJob) -> list[dict[str, Any]]:
    ports = [{"name": "master", "containerPort": master_port(job)}]
    if job.spec.monitoring is not None and job.spec.monitoring.enabled:
        ports.append({"name": "metrics", "containerPort": job.spec.monitoring.metrics_port})
    return ports
