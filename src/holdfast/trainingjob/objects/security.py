"""As whom a job's pods run: the restricted profile of the Pod Security Standards, where the user says nothing else."""

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
    # Every attempt mounts the volume with all checkpoints: going through its files each time would take minutes.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod_security(job: TrainingJob) -> dict[str, Any]:
    """The user's fields replace ours one by one."""
    template = job.spec.pod_template
    own = template.security_context if template is not None else None
    return {**_POD, **(msgspec.to_builtins(own) if own is not None else {})}


def refusal(job: TrainingJob, forbidden: frozenset[Forbidden]) -> str:
    """Why this operator makes no pods for the job; empty if it does."""
    asked = [(which, what) for which, what in _asks(job) if which in forbidden]
    if not asked:
        return ""
    which = " ".join(f"--forbid {one}" for one, _ in asked)
    what = " and ".join(what for _, what in asked)
    return f"spec.podTemplate asks for {what}, which the operator forbids ({which}): leave it out"


def _asks(job: TrainingJob) -> Iterator[tuple[Forbidden, str]]:
    """What the job wants beyond the pod that it gets when it says nothing."""
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
    if template.service_account_name:  # also one of the job's name: nobody looks then whether it is the job's
        yield Forbidden.SERVICE_ACCOUNT_NAME, f"the service account {template.service_account_name}"
