"""What a worker finds in its file system beside its image: the task, its checkpoints, shared memory, its data."""

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
SHARED_MEMORY = "/dev/shm"  # noqa: S108  # the path is the pod's, where data loaders look for it


def volumes(job: TrainingJob) -> list[dict[str, Any]]:
    return [*(volume for volume, _ in _ours(job)), *msgspec.to_builtins(_overlay(job).volumes)]


def mounts(job: TrainingJob) -> list[dict[str, Any]]:
    return [*(mount for _, mount in _ours(job)), *msgspec.to_builtins(_overlay(job).volume_mounts)]


def _ours(job: TrainingJob) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each volume and where it is mounted."""
    yield {"name": CONFIG_VOLUME, "configMap": {"name": names.config_map_name(job)}}, CONFIG_MOUNT
    if not _brings_shared_memory(job):
        # A runtime's own /dev/shm has 64 MiB: too little for the batches that PyTorch's data loaders hand over in it.
        yield (
            {"name": SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory"}},
            {"name": SHARED_MEMORY_VOLUME, "mountPath": SHARED_MEMORY},
        )
    kept = storage.checkpoint_storage(job)
    if kept is not None:
        yield storage.volume(job, kept), storage.mount(job, kept)
    if has_sidecar(job):
        yield {"name": RUN_VOLUME, "emptyDir": {}}, RUN_MOUNT


def _brings_shared_memory(job: TrainingJob) -> bool:
    return any(posixpath.normpath(mount.mount_path) == SHARED_MEMORY for mount in _overlay(job).volume_mounts)


def _overlay(job: TrainingJob) -> PodTemplate:
    return job.spec.pod_template or PodTemplate()
