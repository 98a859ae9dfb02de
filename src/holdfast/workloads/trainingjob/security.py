"""As whom a job's pods run: the restricted profile of the Pod Security Standards, where the user says nothing else."""

from typing import Any

import msgspec

from holdfast.api.trainingjob import TrainingJob

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


def container_security(*, locks_memory: bool = False) -> dict[str, Any]:
    """RDMA registers memory with its device, for which it must be locked: the one exception to the profile."""
    capabilities = {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if locks_memory else {})}
    return {"allowPrivilegeEscalation": False, "capabilities": capabilities}
