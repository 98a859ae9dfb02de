"""The kinds that people name on a command line: Kubernetes' own that holdfast uses, and holdfast's."""

from msgspec import Struct

from holdfast.api.crd import CATEGORY
from holdfast.api.kinds import KINDS
from holdfast.cluster.printing.builtin import columns_of
from holdfast.cluster.printing.columns import Column, printer_columns
from holdfast.cluster.protocol import Resource
from holdfast.cluster.whole import RawObject

ALL = "all"


class KnownKind(Struct, frozen=True, kw_only=True):
    """A kind, every name that it goes by, and what a table shows of it."""

    resource: Resource[RawObject]
    singular: str
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    columns: tuple[Column, ...]
    has_status: bool = True
    has_scale: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return self.singular, self.resource.plural, *self.short_names

    @property
    def title(self) -> str:
        """As output names an object's kind: trainingjob.ml.example.com, pod."""
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
