"""The controllers that a cluster has besides its API server: Jobs, Deployments, scheduling, claims, nodes.

They are ordinary controllers on the cluster protocol and do not depend on the server behind the protocol.
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
    """A cluster that can bind pods to nodes, as the embedded cluster does."""


def add_kube_controllers(
    operator: Operator,
    cluster: BindingCluster,
    *,
    now: Now,
    grace_s: float = GRACE_S,
    reclaim: Reclaim = nothing_to_reclaim,
) -> None:
    """Add all built-in controllers to `operator`.

    A node without a heartbeat for `grace_s` counts as lost. `reclaim` removes the storage of a deleted claim.
    """
    operator.add(jobs(operator, now=now))
    operator.add(finished_jobs(operator, now=now))
    operator.add(deployments(operator, now=now))
    operator.add(claims(operator, cluster, reclaim=reclaim))
    operator.add(scheduler(operator, cluster, now=now))
    operator.add(nodes(operator, cluster, now=now, grace_s=grace_s))
