"""The Indexed Job that runs a TrainingJob's workers."""

import hashlib
from typing import Any

import msgspec
from msgspec import structs

from holdfast.api.trainingjob import TrainingJob, TrainingJobSpec
from holdfast.api.trainingjob_blocks import FailurePolicy
from holdfast.api.trainingjob_status import RestartCounts
from holdfast.pods.template import Defaults
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.pod import TRAINER, pod_template
from holdfast.trainingjob.objects.resources import is_elastic
from holdfast.trainingjob.objects.sidecar import needs_sidecar

# The program chose an exit code below 128; a code above 128 means that a signal ended it.
PERMANENT_EXIT_CODES = list(range(1, 128))


def workers_job(job: TrainingJob, defaults: Defaults, *, suspended: bool) -> dict[str, Any]:
    """The Job of one attempt. A gang's Job fails with its first failed worker; an elastic Job replaces the worker."""
    metadata = names.metadata(job, names.job_name(job), labelled={**names.labels(job), **names.queue_label(job)})
    metadata["annotations"] = {names.SPEC_DIGEST: spec_digest(job.spec)}
    spec = {
        "completionMode": "Indexed",
        "completions": job.spec.num_workers,
        "parallelism": job.spec.num_workers,
        "podReplacementPolicy": "Failed",
        "backoffLimit": 0,
        "suspend": True,  # Kueue requires it for its Jobs; mutable_fields() overrides it for other Jobs
        "template": pod_template(job, defaults),
    }
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
