"""The Indexed Job that runs a TrainingJob's workers, with the pod template of a worker."""

import hashlib
from collections.abc import Collection, Iterator
from typing import Any

import msgspec
from msgspec import structs

from holdfast.api.trainingjob import TrainingJob, TrainingJobSpec
from holdfast.api.trainingjob_blocks import FailurePolicy, PodTemplate, Scheduling
from holdfast.api.trainingjob_status import RestartCounts
from holdfast.pods.sidecar import GRACE_S
from holdfast.pods.template import GPU_TOLERATION, Defaults, ForbiddenFeature, container_security, on_nodes
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.environment import environment, mounts, volumes
from holdfast.trainingjob.objects.resources import gpus_per_worker, is_elastic, master_port, uses_rdma, worker_resources
from holdfast.trainingjob.objects.services import METRICS_PORT, enabled_monitoring, scrape_annotations
from holdfast.trainingjob.objects.sidecar import grace_s, needs_sidecar, trainer_probes
from holdfast.trainingjob.objects.sidecar_container import sidecar, sidecar_volumes

# The pod template of a worker.


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
    labels = {**overlay.labels, **names.labels(job), **names.discovery_labels(defaults.discovery)}
    metadata: dict[str, Any] = {"labels": labels}
    annotations = {**scrape_annotations(job), **overlay.annotations}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": _pod_spec(job, overlay, defaults)}


def _pod_spec(job: TrainingJob, overlay: PodTemplate, defaults: Defaults) -> dict[str, Any]:
    sidecar_container = sidecar(job, defaults)
    return {
        "restartPolicy": "Never",
        "subdomain": names.subdomain(job, defaults.discovery),
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
    # The API server allows one name in each exclusion.
    exclusions = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in sorted(nodes)]
    return {**template, "spec": on_nodes(template["spec"], exclusions)}


def avoided_nodes_annotation(nodes: Collection[str]) -> dict[str, str]:
    """The annotation with the nodes that a Job was created to avoid."""
    return {AVOIDS: ",".join(sorted(nodes))} if nodes else {}


# The security context of a job's pods: the restricted Pod Security Standard, unless the user sets something else.


_POD = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "fsGroup": 1000,
    # Every attempt mounts the volume with all checkpoints: changing the owner of each file would take minutes.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod_security(job: TrainingJob) -> dict[str, Any]:
    """The user's fields override the defaults one by one."""
    template = job.spec.pod_template
    own = template.security_context if template is not None else None
    return {**_POD, **(msgspec.to_builtins(own) if own is not None else {})}


def refusal(job: TrainingJob, forbidden: frozenset[ForbiddenFeature]) -> str:
    """Why this operator creates no pods for the job; empty if it does."""
    requested = [(which, what) for which, what in _privileges_requested(job) if which in forbidden]
    if not requested:
        return ""
    which = " ".join(f"--forbid {one}" for one, _ in requested)
    what = " and ".join(what for _, what in requested)
    return f"spec.podTemplate asks for {what}, which the operator forbids ({which}): leave it out"


def _privileges_requested(job: TrainingJob) -> Iterator[tuple[ForbiddenFeature, str]]:
    """The privileges that the job requests beyond the default pod."""
    template = job.spec.pod_template
    if template is None:
        return
    for volume in template.volumes:
        if volume.host_path is not None:
            yield ForbiddenFeature.HOST_PATH, f"a path of the node (volume {volume.name})"
        if volume.projected is not None and any(each.service_account_token for each in volume.projected.sources):
            yield ForbiddenFeature.SERVICE_ACCOUNT_TOKEN, f"a token of its service account (volume {volume.name})"
    if template.host_network:
        yield ForbiddenFeature.HOST_NETWORK, "the node's network"
    security = pod_security(job)
    if security["runAsUser"] == 0 or not security["runAsNonRoot"]:
        yield ForbiddenFeature.ROOT, "leave to run as root"
    if template.service_account_name:  # also the job's own name: nothing checks then that the account is the job's
        yield ForbiddenFeature.SERVICE_ACCOUNT_NAME, f"the service account {template.service_account_name}"


# The program chose an exit code below 128; a code above 128 means that a signal ended it.
PERMANENT_EXIT_CODES = list(range(1, 128))


def workers_job(job: TrainingJob, template: dict[str, Any] | None, *, suspended: bool) -> dict[str, Any]:
    """The Job of one attempt. A gang's Job fails with its first failed worker; an elastic Job replaces the worker.

    A Job that exists is compared without a template: its template can't change.
    """
    metadata = names.metadata(job, names.job_name(job), labelled={**names.labels(job), **names.queue_label(job)})
    metadata["annotations"] = {names.SPEC_DIGEST: spec_digest(job.spec)}
    spec = {
        "completionMode": "Indexed",
        "completions": job.spec.num_workers,
        "parallelism": job.spec.num_workers,
        "podReplacementPolicy": "Failed",
        "backoffLimit": 0,
        "suspend": True,  # Kueue requires it for its Jobs; mutable_fields() overrides it for other Jobs
    }
    if template is not None:
        spec["template"] = template
    if is_elastic(job.spec):
        spec["podFailurePolicy"] = {"rules": _failure_rules(job)}
    return {"metadata": metadata, "spec": {**spec, **mutable_fields(job, suspended=suspended)}}


def mutable_fields(job: TrainingJob, *, suspended: bool) -> dict[str, Any]:
    """The fields of the Job that follow the TrainingJob while it runs; other changes start a new attempt."""
    fields: dict[str, Any] = {}
    if not names.queue_label(job):
        fields["suspend"] = suspended
    if is_elastic(job.spec):
        fields["backoffLimit"] = _backoff_limit_left(job)
    return fields


def spec_digest(spec: TrainingJobSpec) -> str:
    """Identifies the spec that a Job was created for, whatever version of holdfast created it.

    The digest is of the user's spec, not of the Job: an upgrade that builds Jobs differently must not restart them.
    """
    fields = msgspec.to_builtins(spec)
    for harmless in ("suspend", "ttlSecondsAfterFinished", "progressDeadlineSeconds", "failurePolicy", "successPolicy"):
        fields.pop(harmless, None)
    fields["restartPolicy"] = (spec.failure_policy or FailurePolicy()).restart_policy
    fields.get("checkpoint", {}).pop("retention", None)
    if needs_sidecar(spec) and not needs_sidecar(
        structs.replace(spec, success_policy=None, progress_deadline_seconds=None)
    ):
        fields["sidecar"] = True  # a policy that acts on progress needs the sidecar
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()[:16]


def _backoff_limit_left(job: TrainingJob) -> int:
    """The part of backoffLimit that earlier attempts have not used."""
    policy = job.spec.failure_policy or FailurePolicy()
    if policy.restart_policy == "Never":
        return 0
    restarts = (job.status and job.status.restarts) or RestartCounts()
    return max(0, policy.backoff_limit - restarts.out_of_memory - restarts.hang - restarts.application)


def _failure_rules(job: TrainingJob) -> list[dict[str, Any]]:
    """A worker that is lost with its node is replaced for free; with ExitCode, the program's own errors are final."""
    rules: list[dict[str, Any]] = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ]
    policy = job.spec.failure_policy
    if policy is not None and policy.restart_policy == "ExitCode":
        codes = {"containerName": TRAINER, "operator": "In", "values": PERMANENT_EXIT_CODES}
        rules.append({"action": "FailJob", "onExitCodes": codes})
    return rules
