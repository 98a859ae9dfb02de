"""The engine that talks HTTP to a Kubernetes API server.

    config = load_config()
    cluster = connect(config, rng=Random(), now=lambda: datetime.now(UTC))

`load_config` looks where kubectl looks; `connect` returns a `holdfast.cluster.protocol.Cluster`.
"""

from holdfast.cluster.kubernetes.client import KubernetesCluster, connect
from holdfast.cluster.kubernetes.config import Config
from holdfast.cluster.kubernetes.pool import Gate
from holdfast.cluster.kubernetes.retries import RetryLimits
from holdfast.cluster.kubernetes.sources import load_config
from holdfast.cluster.kubernetes.transport import Observe, Timeouts

__all__ = ["Config", "Gate", "KubernetesCluster", "Observe", "RetryLimits", "Timeouts", "connect", "load_config"]
