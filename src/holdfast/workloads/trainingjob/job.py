"""The Indexed Job that runs a TrainingJob's workers."""

import hashlib
from typing import Any

import msgspec

from holdfast.api.trainingjob import FailurePolicy, TrainingJob, TrainingJobSpec
from holdfast.workloads.trainingjob import names
from holdfast.workloads.trainingjob.pod import CONTAINER, pod_template

# An exit code below 128 is the program's own verdict; above, a signal ended it.
PERMANENT_EXIT_CODES = list(range(1, 128))


def workers_job(job: TrainingJob, default_image: str) -> dict[str, Any]:
    metadata = names.metadata(job, names.workers(job))
    metadata["annotations"] = {names.SPEC_DIGEST: spec_digest(job.spec)}
    return {
        "metadata": metadata,
        "spec": {
            "completionMode": "Indexed",
            "completions": job.spec.num_workers,
            "parallelism": job.spec.num_workers,
            "podFailurePolicy": {"rules": _failure_rules(job)},
            "template": pod_template(job, default_image),
            **adjustable(job),
        },
    }


def adjustable(job: TrainingJob) -> dict[str, Any]:
    """The fields of the Job that follow the TrainingJob while it runs; the others make a new attempt."""
    policy = job.spec.failure_policy or FailurePolicy()
    return {
        "suspend": job.spec.suspend,
        "backoffLimit": 0 if policy.restart_policy == "Never" else policy.backoff_limit,
        "activeDeadlineSeconds": policy.active_deadline_seconds,
    }


def spec_digest(spec: TrainingJobSpec) -> str:
    """Tells whether a Job was made for this spec, whatever version of holdfast made it.

    Made from what the user wrote, not from the Job: an upgrade that builds Jobs differently must not restart them.
    """
    wish = msgspec.to_builtins(spec)
    for harmless in ("suspend", "ttlSecondsAfterFinished", "progressDeadlineSeconds", "failurePolicy", "successPolicy"):
        wish.pop(harmless, None)
    wish["restartPolicy"] = (spec.failure_policy or FailurePolicy()).restart_policy
    wish.get("checkpoint", {}).pop("retention", None)
    return hashlib.sha256(msgspec.json.encode(wish, order="sorted")).hexdigest()[:16]


def _failure_rules(job: TrainingJob) -> list[dict[str, Any]]:
    """A worker taken away with its machine is replaced for free; with ExitCode, the program's own errors are final."""
    rules: list[dict[str, Any]] = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ]
    policy = job.spec.failure_policy
    if policy is not None and policy.restart_policy == "ExitCode":
        codes = {"containerName": CONTAINER, "operator": "In", "values": PERMANENT_EXIT_CODES}
        rules.append({"action": "FailJob", "onExitCodes": codes})
    return rules
