"""What the pod templates of all kinds share."""

import posixpath
from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct

from holdfast.api.meta import WORKING_DIRECTORY, ObjectMeta


class ForbiddenFeature(StrEnum):
    """Features that an operator can be configured to refuse, as named in a pod's spec."""

    HOST_PATH = "hostPath"
    HOST_NETWORK = "hostNetwork"
    ROOT = "root"
    SERVICE_ACCOUNT_TOKEN = "serviceAccountToken"  # noqa: S105  # the name of a field
    SERVICE_ACCOUNT_NAME = "serviceAccountName"


def container_security(*, locks_memory: bool = False) -> dict[str, Any]:
    """RDMA registers memory with its device, and this memory must be locked: the one exception to the profile."""
    capabilities = {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if locks_memory else {})}
    return {"allowPrivilegeEscalation": False, "capabilities": capabilities}


MANAGED_BY = "app.kubernetes.io/managed-by"


# Selects objects that holdfast made.
MANAGED_SELECTOR = f"{MANAGED_BY}=holdfast"


# The container that restores, saves and reports beside a training.
SIDECAR_CONTAINER = "holdfast-sidecar"


GPU = "nvidia.com/gpu"


GPU_TOLERATION = {"key": GPU, "operator": "Exists"}


def on_nodes(spec: dict[str, Any], fields: list[dict[str, Any]]) -> dict[str, Any]:
    """The pod's spec with these requirements on fields of its node, in addition to its own affinity."""
    affinity = spec.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    # Terms are alternatives, so each needs the requirements.
    terms = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), *fields]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {**spec, "affinity": {**affinity, "nodeAffinity": {**node_affinity, **required}}}


def on_node(spec: dict[str, Any], node: str) -> dict[str, Any]:
    """The pod's spec for one node, by affinity and not by nodeName: the scheduler then still checks the capacity."""
    return on_nodes(spec, [{"key": "metadata.name", "operator": "In", "values": [node]}])


def escape_dollar(text: str) -> str:
    """Escapes a user's text: Kubernetes expands $(X) in values, and $$ is a plain $."""
    return text.replace("$", "$$")


# Defaults of the operator for fields that a spec leaves out.

TENSORBOARD_IMAGE = "tensorflow/tensorflow:2.19.0"
RDMA_RESOURCE = "rdma/hca_shared_devices_a"
CLAIM_SIZE = "10Gi"
CLUSTER_DOMAIN = "cluster.local"
# Which headless Service gives the workers of a job their DNS names: one of the job's own, or one of its namespace.
Discovery = Literal["job", "namespace"]


class Defaults(Struct, frozen=True, kw_only=True):
    """`holdfast_image` carries the holdfast command, `tensorboard_image` the tensorboard command."""

    image: str
    images: dict[str, str] = {}
    holdfast_image: str
    tensorboard_image: str = TENSORBOARD_IMAGE
    rdma_resource: str = RDMA_RESOURCE
    claim_size: str = CLAIM_SIZE
    service_monitors: bool = False
    discovery: Discovery = "job"
    cluster_domain: str = CLUSTER_DOMAIN
    """What the DNS names of Services end with. A name that refers to another name has to be whole."""
    forbidden: frozenset[ForbiddenFeature] = frozenset()
    """Features that a job is refused for."""
    shared_loopback: bool = False
    """All pods run on this machine and share 127.0.0.1."""
    sidecar_reserves: bool = True
    """Whether sidecars and TensorBoard request CPU and memory. On one machine a share reserved for each worker would
    leave a core empty."""
    local_folders: bool = False
    """Pods see the files of this machine: commands run in the folder that the working-directory annotation names."""

    runs_containers: bool = True
    """Without containers nothing can save the memory of a pod."""

    plain_http_registries: tuple[str, ...] = ()
    """Registries, with their ports, that sidecars may reach without TLS."""

    def training_image(self, framework: str) -> str:
        return self.images.get(framework) or self.image

    def working_directory(self, metadata: ObjectMeta) -> str:
        """The folder that the command of a workload runs in; empty for the default of the image or the machine."""
        folder = metadata.annotations.get(WORKING_DIRECTORY, "")
        return folder if self.local_folders and posixpath.isabs(folder) else ""
