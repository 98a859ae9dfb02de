"""Nodes, images and pods for the tests of restores."""

from typing import Any

import msgspec

from holdfast.api.core.objects import Pod
from holdfast.pods.restore.nodes import CPU_FLAGS_ANNOTATION, RESTORE_LABEL, RestorableImage, RestoreNode

DIGEST = "sha256:" + "ab" * 32
BASE = f"r.example/base@sha256:{'cd' * 32}"
IMAGE = RestorableImage(
    container="trainer",
    image=f"r.example/checkpoints@{DIGEST}",
    base_image=BASE,
    runtime="containerd 2.2.9",
    cpu_flags=frozenset({"avx2", "sse2", "constant_tsc"}),
)


def node(
    name: str = "n1",
    *,
    restore: str = "true",
    flags: str | None = "sse2 avx2 avx512f",
    runtime: str = "containerd://2.2.9",
    ready: str = "True",
    **spec: Any,
) -> RestoreNode:
    labels = {"kubernetes.io/hostname": f"{name}.example", **({RESTORE_LABEL: restore} if restore else {})}
    document = {
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {} if flags is None else {CPU_FLAGS_ANNOTATION: flags},
        },
        "spec": spec,
        "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "nodeInfo": {"containerRuntimeVersion": runtime},
        },
    }
    return msgspec.convert(document, RestoreNode)


def restored(state: dict[str, Any], *, name: str = "trainer", image: str = "", **more: Any) -> Pod:
    """A pod on n1 with one container in this state."""
    status = {"name": name, "image": image or IMAGE.image, "state": state, **more}
    document = {
        "metadata": {"name": "again", "namespace": "lab"},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Pending", "containerStatuses": [status]},
    }
    return msgspec.convert(document, Pod)


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def terminated(reason: str, message: str = "", code: int = 128) -> dict[str, Any]:
    return {"terminated": {"reason": reason, "message": message, "exitCode": code}}
