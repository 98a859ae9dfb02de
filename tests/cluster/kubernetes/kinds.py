"""Kinds that the tests speak of."""

from msgspec import Struct

from holdfast.api.meta import Object
from holdfast.cluster.protocol import JSON, Resource


class ConfigMap(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    data: dict[str, str] = {}


class JobSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    parallelism: int = 1


class JobStatus(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    active: int = 0


class Job(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


CONFIG_MAPS = Resource(group="", version="v1", kind="ConfigMap", plural="configmaps", model=ConfigMap)
JOBS = Resource(group="batch", version="v1", kind="Job", plural="jobs", model=Job)
NODES = Resource(group="", version="v1", kind="Node", plural="nodes", model=Object, namespaced=False)
UNKNOWN = Resource(group="nowhere.example.com", version="v1", kind="Thing", plural="things", model=Object)


def config_map(name: str, version: int = 1, **data: str) -> JSON:
    return {"metadata": {"name": name, "namespace": "ml", "resourceVersion": str(version)}, "data": data}
