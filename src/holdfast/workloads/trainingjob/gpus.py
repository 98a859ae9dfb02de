"""How many GPUs a worker gets."""

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
