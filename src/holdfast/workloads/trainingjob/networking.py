"""How workers talk to each other: over which port, with which library, over which wire."""

from collections.abc import Iterator

from holdfast.api.trainingjob import Networking, TrainingJob
from holdfast.workloads.trainingjob.gpus import gpus_per_worker


def master_port(job: TrainingJob) -> int:
    return _settings(job).master_port


def backend(job: TrainingJob) -> str:
    """nccl where there are GPUs to talk between, else gloo, unless it is written."""
    return _settings(job).backend or ("nccl" if gpus_per_worker(job.spec) else "gloo")


def uses_rdma(job: TrainingJob) -> bool:
    return _settings(job).rdma_enabled


def network_variables(job: TrainingJob) -> Iterator[tuple[str, str]]:
    """Which interface to use is left to NCCL and gloo: its name differs between clusters, and they find it."""
    yield "HOLDFAST_BACKEND", backend(job)
    if backend(job) == "nccl":
        # A pod sees the node's InfiniBand devices in /sys, and can't open them unless it was given one.
        yield "NCCL_IB_DISABLE", "0" if uses_rdma(job) else "1"


def _settings(job: TrainingJob) -> Networking:
    return job.spec.networking or Networking()
