"""The GPUWorkload controller."""

from holdfast.controllers.gpuworkload.controller import GPUWorkloads, gpu_workloads

__all__ = ["GPUWorkloads", "gpu_workloads"]
