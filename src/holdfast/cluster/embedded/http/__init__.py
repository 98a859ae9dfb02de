"""The part of the Kubernetes REST API that kubectl and our own commands use, served from a cluster in this process."""

from holdfast.cluster.embedded.http.serving import serve
from holdfast.cluster.login import KUBECONFIG

__all__ = ["KUBECONFIG", "serve"]
