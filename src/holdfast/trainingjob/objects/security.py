"""The security context of a job's pods: the restricted Pod Security Standard, unless the user sets something else."""

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.api.trainingjob import TrainingJob
from holdfast.pods.template import Forbidden

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


def refusal(job: TrainingJob, forbidden: frozenset[Forbidden]) -> str:
    """Why this operator creates no pods for the job; empty if it does."""
    requested = [(which, what) for which, what in _privileges_requested(job) if which in forbidden]
    if not requested:
        return ""
    which = " ".join(f"--forbid {one}" for one, _ in requested)
    what = " and ".join(what for _, what in requested)
    return f"spec.podTemplate asks for {what}, which the operator forbids ({which}): leave it out"


def _privileges_requested(job: TrainingJob) -> Iterator[tuple[Forbidden, str]]:
    """The privileges that the job requests beyond the default pod."""
    template = job.spec.pod_template
    if template is None:
        return
    for volume in template.volumes:
        if volume.host_path is not None:
            yield Forbidden.HOST_PATH, f"a path of the node (volume {volume.name})"
        if volume.projected is not None and any(each.service_account_token for each in volume.projected.sources):
            yield Forbidden.SERVICE_ACCOUNT_TOKEN, f"a token of its service account (volume {volume.name})"
    if template.host_network:
        yield Forbidden.HOST_NETWORK, "the node's network"
    security = pod_security(job)
    if security["runAsUser"] == 0 or not security["runAsNonRoot"]:
        yield Forbidden.ROOT, "leave to run as root"
    if template.service_account_name:  # also the job's own name: nothing checks then that the account is the job's
        yield Forbidden.SERVICE_ACCOUNT_NAME, f"the service account {template.service_account_name}"
