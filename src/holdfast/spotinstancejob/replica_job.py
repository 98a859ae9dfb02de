"""The Job of one attempt of a replica, from the job's template; and what surrounds it. Pure."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from holdfast.api.checkpointbackup import RunMode
from holdfast.api.reports import FILE as REPORTS_FILE
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.pods.restore.nodes import RestorableImage
from holdfast.pods.restore.template import RESTORED_FROM, RestorePlan, with_images
from holdfast.pods.restore.template import base_image_pod as pods_base_image_pod
from holdfast.pods.template import GPU_TOLERATION, Defaults, on_node
from holdfast.scheduling.ledger import RESERVATION_LABEL
from holdfast.spotinstancejob import names
from holdfast.spotinstancejob.application import with_sidecar
from holdfast.spotinstancejob.images import CheckpointImages, status_image
from holdfast.spotinstancejob.template import containers, has_gpu, pod_template

# Keeps a machine's GPUs for the job that ordered it; the value is the job's uid.
RESERVED = "holdfast.dev/reserved"
# What the operator decides itself, over all attempts of all replicas, and what makes no sense for one pod.
_NOT_OF_THE_JOB = (
    "activeDeadlineSeconds",
    "ttlSecondsAfterFinished",
    "suspend",
    "selector",
    "manualSelector",
    "managedBy",
    "backoffLimitPerIndex",
    "maxFailedIndexes",
    "successPolicy",
)


class ReplicaAttempt(Struct, frozen=True, kw_only=True):
    """What the Job of an attempt is made of besides the template."""

    replica: int
    attempt: int
    mode: RunMode
    node: str = ""
    """The one node that it runs on; empty for any."""
    checkpoint: CheckpointImages | None = None
    """What it goes on from; in container mode with the labels of its images. None for a start from nothing."""
    is_exact: bool = False
    """Whether it goes on from exactly that, and not from what the replica has in the object store."""
    reservation: str = ""
    """The label by which the ledger knows the attempt's pod."""
    pull_secret: str = ""
    """The name of the Secret that the operator has written for the repository; empty without one."""


def replica_job(job: SpotInstanceJob, attempt: ReplicaAttempt, defaults: Defaults) -> dict[str, Any]:
    """One pod that is never replaced by the Job's controller: that would begin anew instead of being restored."""
    name = names.job_name(job.metadata.name, attempt.replica, attempt.attempt)
    labels = names.replica_labels(job.metadata.name, attempt.replica, attempt.attempt)
    written = job.spec.job_template.get("metadata") or {}
    metadata = names.child_metadata(job, name, {**(written.get("labels") or {}), **labels})
    if annotations := {**(written.get("annotations") or {}), **_restored_from(job, attempt)}:
        metadata["annotations"] = annotations
    spec = {key: value for key, value in job.spec.job_template["spec"].items() if key not in _NOT_OF_THE_JOB}
    if (policy := spec.pop("podFailurePolicy", None)) and (rules := _kept_rules(policy)):
        spec["podFailurePolicy"] = {**policy, "rules": rules}
    spec |= {
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "template": replica_template(job, attempt, defaults),
    }
    return {"metadata": metadata, "spec": spec}


def _kept_rules(policy: dict[str, Any]) -> list[dict[str, Any]]:
    """All but those that ignore a failure: the Job's controller would replace the pod, whatever backoffLimit says.

    Nor those for an index: they go with backoffLimitPerIndex, which makes no sense for one pod.
    """
    return [rule for rule in policy.get("rules") or () if rule.get("action") not in ("Ignore", "FailIndex")]


def replica_template(job: SpotInstanceJob, attempt: ReplicaAttempt, defaults: Defaults) -> dict[str, Any]:
    """The pod's template; also what the placement of the replica goes by, with an attempt that has no node yet."""
    written = pod_template(job)
    meta, spec = written.get("metadata") or {}, {**written["spec"]}
    # What a kubelet restarts begins anew, and the Job's controller then stops the pod: nobody sees why it failed. The
    # attempts that OnFailure asks for are the operator's.
    spec["restartPolicy"] = "Never"
    for kind in ("initContainers", "containers"):
        if kind in spec:
            spec[kind] = [_with_limits(each) for each in spec[kind] or ()]
    spec["tolerations"] = _tolerations(job)
    if secrets := _pull_secrets(job, attempt):
        spec["imagePullSecrets"] = secrets
    if attempt.mode == "application":
        spec = with_sidecar(
            job,
            spec,
            attempt=attempt.attempt,
            replica=attempt.replica,
            resume_from=attempt.checkpoint.images[0].by_digest if attempt.checkpoint is not None else "",
            is_exact=attempt.is_exact,
            defaults=defaults,
        )
    elif attempt.checkpoint is not None:
        spec["containers"] = with_images(spec["containers"], _restorable(attempt))
    if attempt.node:
        spec = on_node(spec, attempt.node)
    labels = {
        **(meta.get("labels") or {}),
        **names.replica_labels(job.metadata.name, attempt.replica, attempt.attempt),
        **({RESERVATION_LABEL: attempt.reservation} if attempt.reservation else {}),
    }
    annotations = {**(meta.get("annotations") or {}), **_restored_from(job, attempt)}
    return {"metadata": {"labels": labels, **({"annotations": annotations} if annotations else {})}, "spec": spec}


def base_image_pod(job: SpotInstanceJob, attempt: ReplicaAttempt, defaults: Defaults) -> dict[str, Any] | None:
    """A pod that brings the base images to the node before a container checkpoint is restored there.

    None if there is nothing to bring. It is done when `pods.restore.failure.has_base_images` says so, and failed when
    `base_image_failure` says why.
    """
    if attempt.mode == "application" or attempt.checkpoint is None:
        return None
    of_attempt = job.metadata.name, attempt.replica, attempt.attempt
    plan = RestorePlan(
        name=names.job_name(*of_attempt),
        namespace=job.metadata.namespace,
        images=_restorable(attempt),
        needs_label=False,
    )
    made = pods_base_image_pod(replica_template(job, attempt, defaults), plan)
    if made is None:
        return None
    # Beside the owner, the labels tell it from a replica's pod, which a Job owns.
    metadata = names.child_metadata(job, names.base_image_pod_name(*of_attempt), names.replica_labels(*of_attempt))
    return {**made, "metadata": metadata}


def reports_config_map(job: SpotInstanceJob, endpoint: str) -> dict[str, Any]:
    """Where the sidecars report; `endpoint` as `holdfast.api.reports` encodes it. Needed in application mode alone."""
    name = job.metadata.name
    metadata = names.child_metadata(job, names.reports_name(name), names.job_labels(name))
    return {"metadata": metadata, "data": {REPORTS_FILE: endpoint}}


def save_mode(job: SpotInstanceJob, *, can_restore: bool) -> RunMode:
    """How replicas are saved. can_restore: whether nodes can create containers from checkpoints."""
    written = job.spec.checkpoint_config.mode
    if written != "auto":
        return written
    # CRIU saves no GPU memory unless a plugin of the vendor is set up on every node. Who names a store for what the
    # training saves by itself has a training that does.
    saves_itself = any(map(has_gpu, containers(job))) or job.spec.checkpoint_config.checkpoint_storage is not None
    return "application" if saves_itself or not can_restore else "container"


def foreign_pull_credential(job: SpotInstanceJob) -> str:
    """A sentence where pods can't pull with checkpointRepoCredentialRef, since it is in another namespace; else empty.

    It says what to copy.
    """
    reference, namespace = job.spec.checkpoint_config.checkpoint_repo_credential_ref, job.metadata.namespace
    if reference is None or reference.namespace in ("", namespace):
        return ""
    where = f"-n {reference.namespace} get secret {reference.name}"
    return (
        f"checkpoints are pushed with Secret {reference.namespace}/{reference.name}, and no pod of {namespace} can "
        f"pull with a Secret of another namespace: replicas can't be restored until it is copied to {namespace} "
        f"(`kubectl {where} -o yaml`, with metadata.namespace: {namespace}, and `kubectl apply -f`), and "
        "checkpointRepoCredentialRef.namespace names that one"
    )


def _restorable(attempt: ReplicaAttempt) -> tuple[RestorableImage, ...]:
    assert attempt.checkpoint is not None
    return tuple(each.restorable for each in attempt.checkpoint.images)


def _restored_from(job: SpotInstanceJob, attempt: ReplicaAttempt) -> dict[str, str]:
    return {RESTORED_FROM: status_image(job, attempt.checkpoint)} if attempt.checkpoint is not None else {}


def _with_limits(container: dict[str, Any]) -> dict[str, Any]:
    """Extended resources under requests alone are limits, too: the API server refuses a container without."""
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    missing = {name: amount for name, amount in requests.items() if _is_extended(name) and name not in limits}
    if not missing:
        return container
    return {**container, "resources": {**resources, "limits": {**limits, **missing}}}


def _is_extended(resource: str) -> bool:
    """As Kubernetes tells them: of a domain other than its own."""
    return "/" in resource and "kubernetes.io/" not in resource and not resource.startswith("requests.")


def _tolerations(job: SpotInstanceJob) -> list[dict[str, Any]]:
    """Of machines that were ordered for this job; and as for other kinds, where nothing is written, of GPU nodes."""
    written = pod_template(job)["spec"].get("tolerations")
    if written is None and any(map(has_gpu, containers(job))):
        written = [GPU_TOLERATION]
    own = {"key": RESERVED, "operator": "Equal", "value": job.metadata.uid, "effect": "NoSchedule"}
    return [*(written or ()), own]


def _pull_secrets(job: SpotInstanceJob, attempt: ReplicaAttempt) -> list[dict[str, Any]]:
    """The template's own, and that of the repository."""
    listed = list(pod_template(job)["spec"].get("imagePullSecrets") or ())
    for name in _repository_secrets(job, attempt):
        if all(each.get("name") != name for each in listed):
            listed.append({"name": name})
    return listed


def _repository_secrets(job: SpotInstanceJob, attempt: ReplicaAttempt) -> Iterator[str]:
    reference = job.spec.checkpoint_config.checkpoint_repo_credential_ref
    if reference is not None and reference.namespace in ("", job.metadata.namespace):
        yield reference.name
    if attempt.pull_secret:
        yield attempt.pull_secret
