"""The GPUWorkload controller."""

from holdfast.controllers.gpuworkload.controller import GPUWorkloadReconciler, gpu_workload_controller

__all__ = ["GPUWorkloadReconciler", "gpu_workload_controller"]
