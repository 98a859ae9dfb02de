"""PersistentVolumeClaims."""

from collections.abc import Iterator

from holdfast.cluster.embedded.kind import KindHooks, ObjectReader
from holdfast.cluster.embedded.refusals import forbidden, missing
from holdfast.cluster.errors import Cause
from holdfast.cluster.protocol import JSON

# Keeps a claim that pods use; whoever watches the pods takes it off.
PROTECTION = "kubernetes.io/pvc-protection"
_ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")


def _prepare_claim(claim: JSON, _around: ObjectReader) -> None:
    metadata = claim["metadata"]
    metadata["finalizers"] = [*metadata.get("finalizers", []), PROTECTION]
    claim["status"] = {"phase": "Pending"}


def _validate_claim(claim: JSON, old: JSON | None) -> Iterator[Cause]:
    for mode in claim["spec"].get("accessModes", []):
        if mode not in _ACCESS_MODES:
            supported = ", ".join(f'"{each}"' for each in _ACCESS_MODES)
            why = f'Unsupported value: "{mode}": supported values: {supported}'
            yield Cause("spec.accessModes", why, "FieldValueNotSupported")
    if "storage" not in claim["spec"].get("resources", {}).get("requests", {}):
        yield missing("spec.resources[storage]")
    free = ("resources", "volumeName", "volumeAttributesClassName")
    if old is not None and _without(claim["spec"], free) != _without(old["spec"], free):
        why = "spec is immutable after creation except resources.requests and volumeAttributesClassName"
        yield forbidden("spec", why)


def _without(spec: JSON, fields: tuple[str, ...]) -> JSON:
    return {name: value for name, value in spec.items() if name not in fields}


CLAIMS = KindHooks(prepare_create=_prepare_claim, validate=_validate_claim)
