"""The kinds that people name on a command line: Kubernetes' own that holdfast uses, and holdfast's."""

from msgspec import Struct

from holdfast.api.crd import CATEGORY
from holdfast.api.kinds import KINDS
from holdfast.cluster.printing.builtin import columns_of
from holdfast.cluster.printing.columns import Column, printer_columns
from holdfast.cluster.protocol import Resource
from holdfast.cluster.whole import Whole

ALL = "all"


class Known(Struct, frozen=True, kw_only=True):
    """A kind, every name that it goes by, and what a table shows of it."""

    resource: Resource[Whole]
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


def _own(
    plural: str,
    kind: str,
    *short_names: str,
    group: str = "",
    namespaced: bool = True,
    has_status: bool = True,
    categories: tuple[str, ...] = (),
) -> Known:
    resource = Resource(group=group, version="v1", kind=kind, plural=plural, model=Whole, namespaced=namespaced)
    return Known(
        resource=resource,
        singular=kind.lower(),
        short_names=short_names,
        categories=categories,
        columns=columns_of(str(resource)),
        has_status=has_status,
    )


BUILTIN = (
    _own("pods", "Pod", "po", categories=(ALL,)),
    _own("services", "Service", "svc", categories=(ALL,)),
    _own("jobs", "Job", group="batch", categories=(ALL,)),
    _own("deployments", "Deployment", "deploy", group="apps", categories=(ALL,)),
    _own("configmaps", "ConfigMap", "cm", has_status=False),
    _own("secrets", "Secret", has_status=False),
    _own("serviceaccounts", "ServiceAccount", "sa", has_status=False),
    _own("persistentvolumeclaims", "PersistentVolumeClaim", "pvc"),
    _own("events", "Event", "ev", has_status=False),
    _own("namespaces", "Namespace", "ns", namespaced=False),
    _own("nodes", "Node", "no", namespaced=False),
    _own("leases", "Lease", group="coordination.k8s.io", has_status=False),
    _own("priorityclasses", "PriorityClass", "pc", group="scheduling.k8s.io", namespaced=False, has_status=False),
    _own(
        "customresourcedefinitions",
        "CustomResourceDefinition",
        "crd",
        "crds",
        group="apiextensions.k8s.io",
        namespaced=False,
    ),
)
OURS = tuple(
    Known(
        resource=Resource(group=kind.group, version=kind.versions[0], kind=kind.kind, plural=kind.plural, model=Whole),
        singular=kind.singular,
        short_names=(kind.short_name,),
        categories=(CATEGORY, ALL),
        columns=printer_columns(kind.columns),
        has_scale=kind.scale is not None,
    )
    for kind in KINDS
)
KNOWN = (*OURS, *BUILTIN)
