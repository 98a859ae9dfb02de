"""The kinds that holdfast talks to a cluster about."""

from typing import TypeVar

from holdfast.api import gpuworkload, trainingjob
from holdfast.api.builtin import (
    ConfigMap,
    CoreEvent,
    Deployment,
    Job,
    Lease,
    Namespace,
    Node,
    PersistentVolumeClaim,
    Pod,
    PriorityClass,
    Service,
    ServiceAccount,
)
from holdfast.api.kind import Kind
from holdfast.api.meta import Object
from holdfast.cluster.protocol import Resource

T = TypeVar("T", bound=Object)


def resource_of(kind: Kind[T]) -> Resource[T]:
    """A kind of ours, in its stored version."""
    return Resource(group=kind.group, version=kind.versions[0], kind=kind.kind, plural=kind.plural, model=kind.model)


TRAINING_JOBS = resource_of(trainingjob.KIND)
GPU_WORKLOADS = resource_of(gpuworkload.KIND)

JOBS = Resource(group="batch", version="v1", kind="Job", plural="jobs", model=Job)
SERVICES = Resource(group="", version="v1", kind="Service", plural="services", model=Service)
CONFIG_MAPS = Resource(group="", version="v1", kind="ConfigMap", plural="configmaps", model=ConfigMap)
PODS = Resource(group="", version="v1", kind="Pod", plural="pods", model=Pod)
NAMESPACES = Resource(group="", version="v1", kind="Namespace", plural="namespaces", model=Namespace, namespaced=False)
LEASES = Resource(group="coordination.k8s.io", version="v1", kind="Lease", plural="leases", model=Lease)
NODES = Resource(group="", version="v1", kind="Node", plural="nodes", model=Node, namespaced=False)
SERVICE_ACCOUNTS = Resource(
    group="", version="v1", kind="ServiceAccount", plural="serviceaccounts", model=ServiceAccount
)
CLAIMS = Resource(
    group="", version="v1", kind="PersistentVolumeClaim", plural="persistentvolumeclaims", model=PersistentVolumeClaim
)
DEPLOYMENTS = Resource(group="apps", version="v1", kind="Deployment", plural="deployments", model=Deployment)
PRIORITY_CLASSES = Resource(
    group="scheduling.k8s.io",
    version="v1",
    kind="PriorityClass",
    plural="priorityclasses",
    model=PriorityClass,
    namespaced=False,
)
# The Prometheus Operator's; a cluster may not have it.
SERVICE_MONITORS = Resource(
    group="monitoring.coreos.com", version="v1", kind="ServiceMonitor", plural="servicemonitors", model=Object
)
EVENTS = Resource(group="", version="v1", kind="Event", plural="events", model=CoreEvent)
