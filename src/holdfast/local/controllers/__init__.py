"""The controllers that a cluster has besides its API server: Jobs, Deployments, scheduling, claims, machines.

They are ordinary controllers on the cluster protocol and know nothing of what serves it.
"""

from typing import Protocol

from holdfast.cluster.protocol import Cluster
from holdfast.local.controllers.deployments import deployments
from holdfast.local.controllers.jobs import jobs
from holdfast.local.controllers.nodes import GRACE_S, nodes
from holdfast.local.controllers.scheduler import Binder, scheduler
from holdfast.local.controllers.storage import Reclaim, claims, finished_jobs, nothing_to_reclaim
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now

__all__ = ["BindingCluster", "add_kube_controllers"]


class BindingCluster(Cluster, Binder, Protocol):
    """A cluster that lets pods be bound to machines, as the embedded one does."""


def add_kube_controllers(
    operator: Operator,
    cluster: BindingCluster,
    *,
    now: Now,
    grace_s: float = GRACE_S,
    reclaim: Reclaim = nothing_to_reclaim,
) -> None:
    """Have `operator` run all of them.

    A machine not heard of for `grace_s` is taken to be lost; `reclaim` removes the storage of a claim that goes.
    """
    operator.add(jobs(operator, now=now))
    operator.add(finished_jobs(operator, now=now))
    operator.add(deployments(operator, now=now))
    operator.add(claims(operator, cluster, reclaim=reclaim))
    operator.add(scheduler(operator, cluster, now=now))
    operator.add(nodes(operator, cluster, now=now, grace_s=grace_s))
