"""A cluster in this process: the protocol's second engine."""

from holdfast.cluster.embedded.engine import EmbeddedCluster, FollowLogs, PodLogs
from holdfast.cluster.embedded.examination import DatabaseUnusable
from holdfast.cluster.embedded.opening import open_cluster

__all__ = ["DatabaseUnusable", "EmbeddedCluster", "FollowLogs", "PodLogs", "open_cluster"]
