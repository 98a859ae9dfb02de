"""The controllers that a cluster has besides its API server: Jobs, scheduling, the life of machines, finished Jobs.

They are ordinary controllers on the cluster protocol and know nothing of what serves it.
"""

from typing import Protocol

from holdfast.cluster.protocol import Cluster
from holdfast.plane.jobs.controller import jobs
from holdfast.plane.nodes.controller import GRACE_S, nodes
from holdfast.plane.scheduling.controller import Binder, scheduler
from holdfast.plane.ttl import finished_jobs
from holdfast.runtime.clocks import Now
from holdfast.runtime.operator import Operator

__all__ = ["BindingCluster", "add_plane"]


class BindingCluster(Cluster, Binder, Protocol):
    """A cluster that lets pods be bound to machines, as the embedded one does."""


def add_plane(operator: Operator, cluster: BindingCluster, *, now: Now, grace_s: float = GRACE_S) -> None:
    """Have `operator` run all of them; a machine not heard of for `grace_s` is taken to be lost."""
    operator.add(jobs(operator, now=now))
    operator.add(finished_jobs(operator, now=now))
    operator.add(scheduler(operator, cluster, now=now))
    operator.add(nodes(operator, cluster, now=now, grace_s=grace_s))
