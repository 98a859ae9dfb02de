"""The container of a GPUWorkload."""

from typing import Any

import msgspec

from holdfast.api.gpuworkload import GPUWorkload
from holdfast.workloads.trainingjob.defaults import Defaults
from holdfast.workloads.trainingjob.environment import escape_dollar
from holdfast.workloads.trainingjob.gpus import GPU
from holdfast.workloads.trainingjob.security import container_security

WORKLOAD = "workload"


def container(workload: GPUWorkload, defaults: Defaults) -> dict[str, Any]:
    spec = workload.spec
    folder = defaults.working_directory(workload.metadata)
    optional = {"command": spec.command, "args": spec.args, "workingDir": folder}
    return {
        "name": WORKLOAD,
        "image": spec.image or defaults.image,
        **{name: msgspec.to_builtins(value) for name, value in optional.items() if value},
        "env": _environment(workload),
        "resources": _resources(workload),
        "securityContext": container_security(),
        # Without a message of its own, the last lines of a failed container's log say why.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _environment(workload: GPUWorkload) -> list[dict[str, Any]]:
    """The user's own last: a name that they write replaces ours."""
    own = [msgspec.to_builtins(variable) for variable in workload.spec.env]
    ours = {"name": "MODEL", "value": escape_dollar(workload.spec.model_name)}
    return own if any(variable["name"] == "MODEL" for variable in own) else [ours, *own]


def _resources(workload: GPUWorkload) -> dict[str, dict[str, Any]]:
    """What is written, with the GPUs in: Kubernetes wants a device's request and limit equal."""
    resources = workload.spec.resources
    written = msgspec.to_builtins(resources) if resources is not None else {}
    return {side: {**written.get(side, {}), GPU: str(workload.spec.gpu_count)} for side in ("requests", "limits")}
