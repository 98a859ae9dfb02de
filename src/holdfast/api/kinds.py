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


def kind_of(api_version: str, kind: str) -> Kind[Any] | None:
    """The kind that an object's apiVersion and kind name, if it is ours and the version is served."""
    group, _, version = api_version.rpartition("/")
    return next(
        (known for known in KINDS if (known.group, known.kind) == (group, kind) and version in known.versions), None
    )
