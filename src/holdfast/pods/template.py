"""What the pod templates of all kinds share."""

import posixpath
from enum import StrEnum
from typing import Any

from msgspec import Struct

from holdfast.api.meta import WORKING_DIRECTORY, ObjectMeta


class Forbidden(StrEnum):
    """What an operator can be told to refuse, in the words of a pod's spec."""

    HOST_PATH = "hostPath"
    HOST_NETWORK = "hostNetwork"
    ROOT = "root"
    SERVICE_ACCOUNT_TOKEN = "serviceAccountToken"  # noqa: S105  # the name of a field
    SERVICE_ACCOUNT_NAME = "serviceAccountName"


def container_security(*, locks_memory: bool = False) -> dict[str, Any]:
    """RDMA registers memory with its device, for which it must be locked: the one exception to the profile."""
    capabilities = {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if locks_memory else {})}
    return {"allowPrivilegeEscalation": False, "capabilities": capabilities}


MANAGED_BY = "app.kubernetes.io/managed-by"


# Selects what holdfast made.
MANAGED_SELECTOR = f"{MANAGED_BY}=holdfast"


GPU = "nvidia.com/gpu"


GPU_TOLERATION = {"key": GPU, "operator": "Exists"}


def escape_dollar(text: str) -> str:
    """A user's text as Kubernetes leaves it alone: it expands $(X) in values, and $$ is a plain $."""
    return text.replace("$", "$$")


# What the operator's settings say where a TrainingJob says nothing.

TENSORBOARD_IMAGE = "tensorflow/tensorflow:2.19.0"
RDMA_RESOURCE = "rdma/hca_shared_devices_a"
CLAIM_SIZE = "10Gi"


class Defaults(Struct, frozen=True, kw_only=True):
    """`holdfast_image` carries the holdfast command, `tensorboard_image` the tensorboard command."""

    image: str
    images: dict[str, str] = {}
    holdfast_image: str
    tensorboard_image: str = TENSORBOARD_IMAGE
    rdma_resource: str = RDMA_RESOURCE
    claim_size: str = CLAIM_SIZE
    service_monitors: bool = False
    forbidden: frozenset[Forbidden] = frozenset()
    """What a job is refused for."""
    shared_loopback: bool = False
    """All pods run on this machine, and 127.0.0.1 is nobody's own."""
    sidecar_reserves: bool = True
    """Whether sidecars and TensorBoard request CPU and memory. On one machine a share kept free for each worker would
    leave a core empty."""
    local_folders: bool = False
    """Pods see the files of this machine: commands run in the folder that the working-directory annotation names."""

    def training_image(self, framework: str) -> str:
        return self.images.get(framework) or self.image

    def working_directory(self, metadata: ObjectMeta) -> str:
        """Where the command of a workload runs; empty for where the image or the machine says."""
        folder = metadata.annotations.get(WORKING_DIRECTORY, "")
        return folder if self.local_folders and posixpath.isabs(folder) else ""
