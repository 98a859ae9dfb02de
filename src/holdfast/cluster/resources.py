"""The kinds that holdfast talks to a cluster about."""

from typing import TypeVar

from holdfast.api import trainingjob
from holdfast.api.builtin import ConfigMap, Job, Lease, Namespace, Pod, Service
from holdfast.api.kind import Kind
from holdfast.api.meta import Object
from holdfast.cluster.protocol import Resource

T = TypeVar("T", bound=Object)


def served(kind: Kind[T]) -> Resource[T]:
    """A kind of ours, in its stored version."""
    return Resource(group=kind.group, version=kind.versions[0], kind=kind.kind, plural=kind.plural, model=kind.model)


TRAINING_JOBS = served(trainingjob.KIND)

JOBS = Resource(group="batch", version="v1", kind="Job", plural="jobs", model=Job)
SERVICES = Resource(group="", version="v1", kind="Service", plural="services", model=Service)
CONFIG_MAPS = Resource(group="", version="v1", kind="ConfigMap", plural="configmaps", model=ConfigMap)
PODS = Resource(group="", version="v1", kind="Pod", plural="pods", model=Pod)
NAMESPACES = Resource(group="", version="v1", kind="Namespace", plural="namespaces", model=Namespace, namespaced=False)
LEASES = Resource(group="coordination.k8s.io", version="v1", kind="Lease", plural="leases", model=Lease)
