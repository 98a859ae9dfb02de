"""The volumes of a worker: configuration, checkpoints, shared memory, and the user's own volumes."""

import posixpath
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_blocks import PodTemplate
from holdfast.trainingjob.objects import names, storage
from holdfast.trainingjob.objects.sidecar import RUN_MOUNT, RUN_VOLUME, has_sidecar

CONFIG_VOLUME = "holdfast-config"
CONFIG_FOLDER = "/etc/holdfast"
CONFIG_MOUNT = {"name": CONFIG_VOLUME, "mountPath": CONFIG_FOLDER, "readOnly": True}
SHARED_MEMORY_VOLUME = "holdfast-shm"
SHARED_MEMORY = "/dev/shm"  # noqa: S108  # the path inside the pod, where data loaders expect it


def volumes(job: TrainingJob) -> list[dict[str, Any]]:
    return [*(volume for volume, _ in _holdfast_volumes(job)), *msgspec.to_builtins(_pod_template(job).volumes)]


def mounts(job: TrainingJob) -> list[dict[str, Any]]:
    return [*(mount for _, mount in _holdfast_volumes(job)), *msgspec.to_builtins(_pod_template(job).volume_mounts)]


def _holdfast_volumes(job: TrainingJob) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each volume with its mount."""
    yield {"name": CONFIG_VOLUME, "configMap": {"name": names.config_map_name(job)}}, CONFIG_MOUNT
    if not _user_mounts_shared_memory(job):
        # The container runtime's /dev/shm has 64 MiB: too little for the batches that PyTorch's data loaders pass.
        yield (
            {"name": SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory"}},
            {"name": SHARED_MEMORY_VOLUME, "mountPath": SHARED_MEMORY},
        )
    checkpoint_storage = storage.checkpoint_storage(job)
    if checkpoint_storage is not None:
        yield storage.volume(job, checkpoint_storage), storage.mount(job, checkpoint_storage)
    if has_sidecar(job):
        yield {"name": RUN_VOLUME, "emptyDir": {}}, RUN_MOUNT


def _user_mounts_shared_memory(job: TrainingJob) -> bool:
    return any(posixpath.normpath(mount.mount_path) == SHARED_MEMORY for mount in _pod_template(job).volume_mounts)


def _pod_template(job: TrainingJob) -> PodTemplate:
    return job.spec.pod_template or PodTemplate()
