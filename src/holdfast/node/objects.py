"""Pods, nodes and ConfigMaps as far as an agent reads them: decoding into these drops everything else."""

from msgspec import Struct, field

from holdfast.api.core.objects import Container
from holdfast.api.meta import Object
from holdfast.cluster.protocol import Resource


class SavedContainer(Container, frozen=True, kw_only=True):
    """A container of the pod, with the image that its author asked for."""

    image: str = ""


class SavedPodSpec(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    node_name: str = ""
    containers: tuple[SavedContainer, ...] = ()
    init_containers: tuple[SavedContainer, ...] = ()


class SavedContainerState(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    running: dict[str, str | None] | None = None


class SavedContainerStatus(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    name: str
    image: str = ""
    image_id: str = field(default="", name="imageID")
    state: SavedContainerState = SavedContainerState()

    @property
    def is_running(self) -> bool:
        return self.state.running is not None


class SavedPodStatus(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    phase: str = ""
    container_statuses: tuple[SavedContainerStatus, ...] = ()
    init_container_statuses: tuple[SavedContainerStatus, ...] = ()


class SavedPod(Object, frozen=True, kw_only=True):
    """The pod whose containers are saved."""

    spec: SavedPodSpec = SavedPodSpec()
    status: SavedPodStatus = SavedPodStatus()

    def container(self, name: str) -> SavedContainer | None:
        """A container that runs beside others; init containers that end are none."""
        sidecars = (each for each in self.spec.init_containers if each.is_sidecar)
        return next((each for each in (*self.spec.containers, *sidecars) if each.name == name), None)

    def container_status(self, name: str) -> SavedContainerStatus | None:
        everything = (*self.status.container_statuses, *self.status.init_container_statuses)
        return next((each for each in everything if each.name == name), None)


class NodeSystemInfo(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    kernel_version: str = ""
    os_image: str = ""
    container_runtime_version: str = ""
    kubelet_version: str = ""
    architecture: str = "amd64"
    operating_system: str = "linux"


class AgentNodeStatus(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    node_info: NodeSystemInfo = NodeSystemInfo()


class AgentNode(Object, frozen=True, kw_only=True):
    """The node that the agent runs on."""

    status: AgentNodeStatus = AgentNodeStatus()


SAVED_PODS = Resource(group="", version="v1", kind="Pod", plural="pods", model=SavedPod)
AGENT_NODES = Resource(group="", version="v1", kind="Node", plural="nodes", model=AgentNode, namespaced=False)
