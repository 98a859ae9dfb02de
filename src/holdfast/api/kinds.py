"""All kinds of holdfast."""

from typing import Any

from holdfast.api import (
    checkpointbackup,
    gpuworkload,
    provisionedinstance,
    spotinstancejob,
    spotinstancevm,
    trainingjob,
)
from holdfast.api.kind import Kind

KINDS: tuple[Kind[Any], ...] = (
    trainingjob.KIND,
    gpuworkload.KIND,
    spotinstancejob.KIND,
    spotinstancevm.KIND,
    provisionedinstance.KIND,
    checkpointbackup.KIND,
)

# Kinds that can be applied and that no controller acts on yet. Whatever says so to people reads this, but for the
# admission policy manifests/operator/kinds-without-controller.yaml.
WITHOUT_CONTROLLER: tuple[Kind[Any], ...] = (
    spotinstancejob.KIND,
    spotinstancevm.KIND,
    provisionedinstance.KIND,
)


def kind_of(api_version: str, kind: str) -> Kind[Any] | None:
    """The kind that an object's apiVersion and kind name, if it is ours and the version is served."""
    group, _, version = api_version.rpartition("/")
    return next(
        (known for known in KINDS if (known.group, known.kind) == (group, kind) and version in known.versions), None
    )


def without_controller(group: str, kind: str) -> str:
    """The sentence about an object that nothing follows from; empty for every other object."""
    if any((known.group, known.kind) == (group, kind) for known in WITHOUT_CONTROLLER):
        return f"no controller acts on a {kind} yet: it is stored, and nothing else happens"
    return ""
