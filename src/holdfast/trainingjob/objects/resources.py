"""What the workers of a job need: GPUs, an elastic range of nodes, network settings, container resources."""

import re
from collections.abc import Iterator

import msgspec

from holdfast.api.trainingjob import TrainingJob, TrainingJobSpec
from holdfast.api.trainingjob_blocks import Networking
from holdfast.pods import sidecar as pods_sidecar
from holdfast.pods.sidecar import Amounts, Resources
from holdfast.pods.template import GPU, Defaults

DEFAULT_GPUS = 1


def gpus_per_worker(spec: TrainingJobSpec) -> int:
    """gpusPerWorker if set, else nvidia.com/gpu of the resources, else one."""
    if spec.gpus_per_worker is not None:
        return spec.gpus_per_worker
    if spec.resources is not None:
        for amounts in (spec.resources.limits, spec.resources.requests):
            if amounts and GPU in amounts:
                return int(amounts[GPU])
    return DEFAULT_GPUS


# Whether a job has an elastic launcher, which adds and removes workers while it runs: torchrun with a range of nodes.

# As two arguments (--nnodes 1:4), as one (--nnodes=1:4), or inside a shell command.
_NNODES_OPTION = re.compile(r"""(?:^|[\s"'])--nnodes(?:=|\s+)["']?([^\s"']*)""")
_NNODES_RANGE = re.compile(r"(\d{1,9}):(\d{1,9})", re.ASCII)


def is_elastic(spec: TrainingJobSpec) -> bool:
    """A gang fails with any of its workers; an elastic training continues with the remaining ones."""
    return min_workers(spec) > 0


def min_workers(spec: TrainingJobSpec) -> int:
    """The number of workers with which an elastic training continues; 0 for a training that is not elastic."""
    node_range = _NNODES_RANGE.fullmatch(_nnodes(spec))
    return max(1, int(node_range[1])) if node_range is not None and int(node_range[1]) != int(node_range[2]) else 0


def _nnodes(spec: TrainingJobSpec) -> str:
    """torchrun's nnodes as the user wrote it: the last option counts, and the variable if there is no option."""
    written = _NNODES_OPTION.findall(" ".join((*spec.command, *spec.args)))
    if written:
        return str(written[-1])
    return next((variable.value or "" for variable in spec.env if variable.name == "PET_NNODES"), "")


# How workers communicate: the master port, the backend, and RDMA.


def master_port(job: TrainingJob) -> int:
    return _networking(job).master_port


def backend(job: TrainingJob) -> str:
    """The backend in the spec, else nccl for workers with GPUs, else gloo."""
    return _networking(job).backend or ("nccl" if gpus_per_worker(job.spec) else "gloo")


def uses_rdma(job: TrainingJob) -> bool:
    return _networking(job).rdma_enabled


def network_variables(job: TrainingJob) -> Iterator[tuple[str, str]]:
    """The network interface is left to NCCL and gloo: its name differs between clusters, and the libraries find it."""
    yield "HOLDFAST_BACKEND", backend(job)
    if backend(job) == "nccl":
        # A pod sees the node's InfiniBand devices in /sys, but can't open a device that was not allocated to it.
        yield "NCCL_IB_DISABLE", "0" if uses_rdma(job) else "1"


def _networking(job: TrainingJob) -> Networking:
    return job.spec.networking or Networking()


# The resource requests and limits of a worker's containers.

_SIDES = ("requests", "limits")


def worker_resources(job: TrainingJob, defaults: Defaults) -> Resources:
    """The user's resources plus devices: Kubernetes requires equal requests and limits for a device."""
    written = _user_resources(job)
    devices: Amounts = {GPU: str(gpus_per_worker(job.spec))}
    if uses_rdma(job):
        devices[defaults.rdma_resource] = _written_amount(written, defaults.rdma_resource) or "1"
    requested = {name: amount for name, amount in devices.items() if amount != "0"}
    sides = {side: {**_without(written.get(side, {}), devices), **requested} for side in _SIDES}
    return {side: amounts for side, amounts in sides.items() if amounts}


def sidecar_resources(job: TrainingJob, defaults: Defaults) -> Resources:
    return pods_sidecar.sidecar_resources(_user_resources(job), reserves=defaults.sidecar_reserves)


def _user_resources(job: TrainingJob) -> Resources:
    resources: Resources = msgspec.to_builtins(job.spec.resources) if job.spec.resources is not None else {}
    return resources


def _written_amount(resources: Resources, name: str) -> int | str | None:
    return next((resources[side][name] for side in reversed(_SIDES) if name in resources.get(side, {})), None)


def _without(amounts: Amounts, names: Amounts) -> Amounts:
    return {name: amount for name, amount in amounts.items() if name not in names}
