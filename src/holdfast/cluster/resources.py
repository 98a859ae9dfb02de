"""The resource kinds that holdfast uses, and JSON merge patches of their objects."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from holdfast.api import (
    checkpointbackup,
    gpuworkload,
    provisionedinstance,
    spotinstancejob,
    spotinstancevm,
    trainingjob,
)
from holdfast.api.core.objects import (
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
    Secret,
    Service,
    ServiceAccount,
)
from holdfast.api.kind import Kind
from holdfast.api.kinds import KINDS
from holdfast.api.meta import Object
from holdfast.api.schema.crd import CATEGORY
from holdfast.cluster.printing.columns import TableColumn, columns_of, printer_columns
from holdfast.cluster.protocol import JSON, Resource

T = TypeVar("T", bound=Object)


def resource_of(kind: Kind[T]) -> Resource[T]:
    """A holdfast kind in its stored version."""
    return Resource(group=kind.group, version=kind.versions[0], kind=kind.kind, plural=kind.plural, model=kind.model)


TRAINING_JOBS = resource_of(trainingjob.KIND)
GPU_WORKLOADS = resource_of(gpuworkload.KIND)
CHECKPOINT_BACKUPS = resource_of(checkpointbackup.KIND)
SPOT_INSTANCE_JOBS = resource_of(spotinstancejob.KIND)
SPOT_INSTANCE_VMS = resource_of(spotinstancevm.KIND)
PROVISIONED_INSTANCES = resource_of(provisionedinstance.KIND)

JOBS = Resource(group="batch", version="v1", kind="Job", plural="jobs", model=Job)
SERVICES = Resource(group="", version="v1", kind="Service", plural="services", model=Service)
CONFIG_MAPS = Resource(group="", version="v1", kind="ConfigMap", plural="configmaps", model=ConfigMap)
SECRETS = Resource(group="", version="v1", kind="Secret", plural="secrets", model=Secret)
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
# A kind of the Prometheus Operator; a cluster may not have it.
SERVICE_MONITORS = Resource(
    group="monitoring.coreos.com", version="v1", kind="ServiceMonitor", plural="servicemonitors", model=Object
)
EVENTS = Resource(group="", version="v1", kind="Event", plural="events", model=CoreEvent)


# Whole objects, with every field of the cluster; a model decodes only its own fields.

S = TypeVar("S", bound=Struct)


class RawObject(Object, frozen=True, kw_only=True):
    """As the model of a resource, it makes an engine return the whole document."""

    document: JSON


def decoder_for(model: type[S]) -> Callable[[bytes | Raw], S]:
    """A function that decodes the JSON of an object into the model; it raises a `MsgspecError` on a mismatch."""
    if model not in _decoders:
        _decoders[model] = _decode_raw if model is RawObject else msgspec.json.Decoder(model).decode
    return _decoders[model]


_decoders: dict[type[Struct], Callable[[bytes | Raw], Any]] = {}
_metadata_decoder = msgspec.json.Decoder(Object)


def _decode_raw(text: bytes | Raw) -> RawObject:
    return RawObject(metadata=_metadata_decoder.decode(text).metadata, document=msgspec.json.decode(text))


# The kinds that users can name on a command line: the built-in kinds that holdfast uses, and the holdfast kinds.

ALL = "all"


class KnownKind(Struct, frozen=True, kw_only=True):
    """A kind, all its names, and its table columns."""

    resource: Resource[RawObject]
    singular: str
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    columns: tuple[TableColumn, ...]
    has_status: bool = True
    has_scale: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return self.singular, self.resource.plural, *self.short_names

    @property
    def title(self) -> str:
        """The kind as printed before the name of an object: trainingjob.ml.example.com, pod."""
        return f"{self.singular}.{self.resource.group}" if self.resource.group else self.singular


def _builtin(
    plural: str,
    kind: str,
    *short_names: str,
    group: str = "",
    namespaced: bool = True,
    has_status: bool = True,
    categories: tuple[str, ...] = (),
) -> KnownKind:
    resource = Resource(group=group, version="v1", kind=kind, plural=plural, model=RawObject, namespaced=namespaced)
    return KnownKind(
        resource=resource,
        singular=kind.lower(),
        short_names=short_names,
        categories=categories,
        columns=columns_of(str(resource)),
        has_status=has_status,
    )


BUILTIN = (
    _builtin("pods", "Pod", "po", categories=(ALL,)),
    _builtin("services", "Service", "svc", categories=(ALL,)),
    _builtin("jobs", "Job", group="batch", categories=(ALL,)),
    _builtin("deployments", "Deployment", "deploy", group="apps", categories=(ALL,)),
    _builtin("configmaps", "ConfigMap", "cm", has_status=False),
    _builtin("secrets", "Secret", has_status=False),
    _builtin("serviceaccounts", "ServiceAccount", "sa", has_status=False),
    _builtin("persistentvolumeclaims", "PersistentVolumeClaim", "pvc"),
    _builtin("events", "Event", "ev", has_status=False),
    _builtin("namespaces", "Namespace", "ns", namespaced=False),
    _builtin("nodes", "Node", "no", namespaced=False),
    _builtin("leases", "Lease", group="coordination.k8s.io", has_status=False),
    _builtin("priorityclasses", "PriorityClass", "pc", group="scheduling.k8s.io", namespaced=False, has_status=False),
    _builtin(
        "customresourcedefinitions",
        "CustomResourceDefinition",
        "crd",
        "crds",
        group="apiextensions.k8s.io",
        namespaced=False,
    ),
)
OURS = tuple(
    KnownKind(
        resource=Resource(
            group=kind.group, version=kind.versions[0], kind=kind.kind, plural=kind.plural, model=RawObject
        ),
        singular=kind.singular,
        short_names=(kind.short_name,),
        categories=(CATEGORY, ALL),
        columns=printer_columns(kind.columns),
        has_scale=kind.scale is not None,
    )
    for kind in KINDS
)
KNOWN = (*OURS, *BUILTIN)


# JSON merge patches (RFC 7386).


def merge_patch(old: JSON, new: JSON) -> JSON:
    """The smallest patch from `old` to `new`; empty when both are equal. A list is replaced as a whole."""
    patch: JSON = dict.fromkeys(old.keys() - new.keys())
    for name, value in new.items():
        before = old.get(name)
        if before == value:
            continue
        patch[name] = merge_patch(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return patch


def apply_merge_patch(target: JSON, patch: JSON) -> JSON:
    """`target` with `patch` applied; both arguments stay unchanged, and unchanged parts are shared."""
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged_value(result.get(key), value)
    return result


def _merged_value(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    return apply_merge_patch(target if isinstance(target, dict) else {}, patch)
