"""Namespaces."""

from holdfast.cluster.embedded.kind import METADATA_FIELDS, KindHooks, ObjectReader
from holdfast.cluster.embedded.names import dns_label_problems
from holdfast.cluster.protocol import JSON

NAME_LABEL = "kubernetes.io/metadata.name"
# In spec.finalizers: it stands for the objects inside, and comes off when they are gone.
CONTENT = "kubernetes"
IMMORTAL = frozenset({"default", "kube-system", "kube-public"})


def _default_namespace(namespace: JSON) -> None:
    name = namespace["metadata"].get("name")
    if name:
        labels = namespace["metadata"].get("labels", {})
        namespace["metadata"]["labels"] = {**labels, NAME_LABEL: name}


def _prepare_namespace(namespace: JSON, _around: ObjectReader) -> None:
    namespace["spec"] = {"finalizers": [CONTENT]}
    namespace["status"] = {"phase": "Active"}


def _update_namespace(namespace: JSON, old: JSON) -> None:
    namespace["spec"] = old["spec"]


NAMESPACES = KindHooks(
    name_problems=dns_label_problems,
    fields=METADATA_FIELDS | {"status.phase"},
    set_defaults=_default_namespace,
    prepare_create=_prepare_namespace,
    prepare_update=_update_namespace,
)
