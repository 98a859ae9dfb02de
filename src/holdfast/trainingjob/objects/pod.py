"""The pod template of a worker."""

from collections.abc import Collection
from typing import Any

import msgspec

from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_blocks import PodTemplate, Scheduling
from holdfast.pods.template import GPU_TOLERATION, Defaults, container_security
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.environment import environment
from holdfast.trainingjob.objects.monitoring import METRICS_PORT, enabled_monitoring, scrape_annotations
from holdfast.trainingjob.objects.resources import gpus_per_worker, master_port, uses_rdma, worker_resources
from holdfast.trainingjob.objects.security import pod_security
from holdfast.trainingjob.objects.sidecar import GRACE_S, grace_s, trainer_probes
from holdfast.trainingjob.objects.sidecar_container import sidecar, sidecar_volumes
from holdfast.trainingjob.objects.volumes import mounts, volumes

# The container that runs the training.

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
        # Without a termination message, the last lines of a failed container's log give the reason.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **trainer_probes(job),
        "volumeMounts": mounts(job),
    }


def _ports(job: TrainingJob) -> list[dict[str, Any]]:
    ports = [{"name": "master", "containerPort": master_port(job)}]
    monitoring = enabled_monitoring(job)
    if monitoring is not None:
        ports.append({"name": METRICS_PORT, "containerPort": monitoring.metrics_port})
    return ports


# Where workers run: the user's constraints, and a toleration for the taint of GPU nodes when GPUs are requested.


def scheduling(job: TrainingJob) -> dict[str, Any]:
    """The fields of a pod's spec for placement and priority; only those that are set."""
    constraints, template = job.spec.scheduling or Scheduling(), job.spec.pod_template or PodTemplate()
    fields = {
        "priorityClassName": constraints.priority,
        "nodeSelector": constraints.node_selector,
        "affinity": constraints.affinity,
        "tolerations": tolerations(job),
        "topologySpreadConstraints": template.topology_spread_constraints,
        "runtimeClassName": template.runtime_class_name,
    }
    return {name: msgspec.to_builtins(value) for name, value in fields.items() if value}


def tolerations(job: TrainingJob) -> list[dict[str, Any]]:
    constraints = job.spec.scheduling
    if constraints is not None and constraints.tolerations is not None:
        return [msgspec.to_builtins(toleration) for toleration in constraints.tolerations]
    return [GPU_TOLERATION] if gpus_per_worker(job.spec) else []


def pod_template(job: TrainingJob, defaults: Defaults) -> dict[str, Any]:
    overlay = job.spec.pod_template or PodTemplate()
    metadata: dict[str, Any] = {"labels": {**overlay.labels, **names.labels(job)}}
    annotations = {**scrape_annotations(job), **overlay.annotations}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": _pod_spec(job, overlay, defaults)}


def _pod_spec(job: TrainingJob, overlay: PodTemplate, defaults: Defaults) -> dict[str, Any]:
    sidecar_container = sidecar(job, defaults)
    return {
        "restartPolicy": "Never",
        "subdomain": names.headless_service_name(job),
        "serviceAccountName": names.service_account(job),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(job),
        **({"initContainers": [sidecar_container]} if sidecar_container else {}),
        "containers": [trainer(job, defaults)],
        "volumes": [*volumes(job), *sidecar_volumes(job)],
        **_optional(job, overlay),
        **scheduling(job),
    }


def _optional(job: TrainingJob, overlay: PodTemplate) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if overlay.image_pull_secrets:
        fields["imagePullSecrets"] = msgspec.to_builtins(overlay.image_pull_secrets)
    if overlay.host_network:
        # With the node's own resolver, workers could not resolve each other's names.
        fields |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if grace_s(job) != GRACE_S:
        fields["terminationGracePeriodSeconds"] = grace_s(job)
    return fields


# Workers avoid nodes that have just been lost: for a while Kubernetes still shows such nodes as ready.

AVOIDS = "holdfast.dev/avoids"


def with_avoided_nodes(template: dict[str, Any], nodes: Collection[str]) -> dict[str, Any]:
    """The pod template with these nodes excluded, in addition to its own affinity."""
    if not nodes:
        return template
    spec = template["spec"]
    affinity = spec.get("affinity", {})
    node_affinity = affinity.get("nodeAffinity", {})
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    # Terms are alternatives, so each needs the exclusions; the API server allows one name in each exclusion.
    exclusions = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in sorted(nodes)]
    terms = [
        {**term, "matchFields": [*term.get("matchFields", []), *exclusions]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    new_node_affinity = {
        **node_affinity,
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
    }
    return {**template, "spec": {**spec, "affinity": {**affinity, "nodeAffinity": new_node_affinity}}}


def avoided_nodes_annotation(nodes: Collection[str]) -> dict[str, str]:
    """The annotation with the nodes that a Job was created to avoid."""
    return {AVOIDS: ",".join(sorted(nodes))} if nodes else {}
