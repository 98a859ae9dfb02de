"""How many GPUs a worker gets, and its resources with them in."""

import msgspec

from holdfast.api.trainingjob import TrainingJobSpec

GPU = "nvidia.com/gpu"
DEFAULT_GPUS = 1


def gpus_per_worker(spec: TrainingJobSpec) -> int:
    """gpusPerWorker where it is written, else nvidia.com/gpu of the resources, else one."""
    if spec.gpus_per_worker is not None:
        return spec.gpus_per_worker
    if spec.resources is not None:
        for amounts in (spec.resources.limits, spec.resources.requests):
            if amounts and GPU in amounts:
                return int(amounts[GPU])
    return DEFAULT_GPUS


def worker_resources(spec: TrainingJobSpec) -> dict[str, dict[str, int | str]]:
    """The container's resources; Kubernetes wants request and limit of a GPU equal, so both are written."""
    written: dict[str, dict[str, int | str]] = msgspec.to_builtins(spec.resources) if spec.resources else {}
    gpus = gpus_per_worker(spec)
    for side in ("requests", "limits"):
        amounts = {name: amount for name, amount in written.get(side, {}).items() if name != GPU}
        if gpus:
            amounts[GPU] = gpus
        if amounts:
            written[side] = amounts
        else:
            written.pop(side, None)
    return written
