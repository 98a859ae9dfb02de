"""What a worker's containers ask for."""

import msgspec

from holdfast.api.trainingjob import TrainingJob
from holdfast.workloads.trainingjob.defaults import Defaults
from holdfast.workloads.trainingjob.gpus import GPU, gpus_per_worker
from holdfast.workloads.trainingjob.networking import uses_rdma

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
