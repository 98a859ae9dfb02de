"""How many GPUs a worker gets."""

import re
from collections.abc import Iterator

import msgspec

from holdfast.api.trainingjob import TrainingJob, TrainingJobSpec
from holdfast.api.trainingjob_blocks import Networking
from holdfast.pods.template import GPU, Defaults

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


# Whether a job brings a launcher that takes workers in and out while it runs: torchrun with a range of nodes.

# As words of their own (--nnodes 1:4), as one (--nnodes=1:4), or inside a shell's command line.
_OPTION = re.compile(r"""(?:^|[\s"'])--nnodes(?:=|\s+)["']?([^\s"']*)""")
_RANGE = re.compile(r"(\d{1,9}):(\d{1,9})", re.ASCII)


def is_elastic(spec: TrainingJobSpec) -> bool:
    """A gang is as strong as its weakest worker; an elastic training goes on with those that are left."""
    return min_workers(spec) > 0


def min_workers(spec: TrainingJobSpec) -> int:
    """With so many an elastic training goes on; 0 for one that is not elastic."""
    nodes = _RANGE.fullmatch(_nodes(spec))
    return max(1, int(nodes[1])) if nodes is not None and int(nodes[1]) != int(nodes[2]) else 0


def _nodes(spec: TrainingJobSpec) -> str:
    """torchrun's number of nodes as the user wrote it: the last option counts, and the variable where there is none."""
    written = _OPTION.findall(" ".join((*spec.command, *spec.args)))
    if written:
        return str(written[-1])
    return next((variable.value or "" for variable in spec.env if variable.name == "PET_NNODES"), "")


# How workers talk to each other: over which port, with which library, over which wire.


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


# What a worker's containers ask for.

Amounts = dict[str, int | str]
Resources = dict[str, Amounts]

_SIDES = ("requests", "limits")
_SIDECAR_REQUESTS: Amounts = {"cpu": "50m", "memory": "128Mi"}
# Of the node's disk it takes its log; its folders are counted for the pod.
_SIDECAR_LIMITS: Amounts = {"cpu": "500m", "memory": "256Mi", "ephemeral-storage": "128Mi"}


def worker_resources(job: TrainingJob, defaults: Defaults) -> Resources:
    """What is written, with the devices in: Kubernetes wants a device's request and limit equal."""
    written = _user_resources(job)
    devices: Amounts = {GPU: str(gpus_per_worker(job.spec))}
    if uses_rdma(job):
        devices[defaults.rdma_resource] = _written_amount(written, defaults.rdma_resource) or "1"
    wanted = {name: amount for name, amount in devices.items() if amount != "0"}
    sides = {side: {**_without(written.get(side, {}), devices), **wanted} for side in _SIDES}
    return {side: amounts for side, amounts in sides.items() if amounts}


def sidecar_resources(job: TrainingJob, defaults: Defaults) -> Resources:
    """Little, and with limits only where the worker has them.

    Without them a Guaranteed pod would become a Burstable one, and a quota that wants limits would refuse it.
    """
    if not defaults.sidecar_reserves:
        return {}
    written = _user_resources(job)
    asked, limits = (
        {name: amount for name, amount in _SIDECAR_LIMITS.items() if name in written.get(side, {})} for side in _SIDES
    )
    requests = {**asked, **_SIDECAR_REQUESTS, **limits}
    return {"requests": requests, "limits": limits} if limits else {"requests": requests}


def _user_resources(job: TrainingJob) -> Resources:
    resources: Resources = msgspec.to_builtins(job.spec.resources) if job.spec.resources is not None else {}
    return resources


def _written_amount(resources: Resources, name: str) -> int | str | None:
    return next((resources[side][name] for side in reversed(_SIDES) if name in resources.get(side, {})), None)


def _without(amounts: Amounts, names: Amounts) -> Amounts:
    return {name: amount for name, amount in amounts.items() if name not in names}
