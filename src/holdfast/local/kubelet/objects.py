"""The fields that the kubelet reads of pods and of the objects that pods refer to.

More pod fields than the operator's cache stores, and no bounds: the API server has already validated these objects.
"""

from typing import Any

from msgspec import Struct, field

from holdfast.api.core.objects import Lease
from holdfast.api.meta import Object
from holdfast.cluster.protocol import Resource


class Part(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Base of all structs inside an object."""


class KeyRef(Part, frozen=True, kw_only=True, rename="camel"):
    name: str = ""
    key: str = ""
    optional: bool = False


class FieldRef(Part, frozen=True, kw_only=True, rename="camel"):
    field_path: str


class ResourceFieldRef(Part, frozen=True, kw_only=True, rename="camel"):
    resource: str
    container_name: str = ""
    divisor: str | int | None = None


class EnvVarSource(Part, frozen=True, kw_only=True, rename="camel"):
    field_ref: FieldRef | None = None
    resource_field_ref: ResourceFieldRef | None = None
    config_map_key_ref: KeyRef | None = None
    secret_key_ref: KeyRef | None = None


class EnvVar(Part, frozen=True, kw_only=True, rename="camel"):
    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


class EnvFrom(Part, frozen=True, kw_only=True, rename="camel"):
    prefix: str = ""
    config_map_ref: KeyRef | None = None
    secret_ref: KeyRef | None = None


class KeyToPath(Part, frozen=True, kw_only=True, rename="camel"):
    key: str
    path: str


class ObjectVolume(Part, frozen=True, kw_only=True, rename="camel"):
    """A ConfigMap or Secret as files; a volume spells the name of a Secret `secretName`."""

    name: str = ""
    secret_name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool = False


class DownwardFile(Part, frozen=True, kw_only=True, rename="camel"):
    path: str
    field_ref: FieldRef | None = None
    resource_field_ref: ResourceFieldRef | None = None


class DownwardVolume(Part, frozen=True, kw_only=True, rename="camel"):
    items: tuple[DownwardFile, ...] = ()


class TokenFile(Part, frozen=True, kw_only=True, rename="camel"):
    """A service account token of the pod for one audience."""

    path: str
    audience: str = ""


class Projection(Part, frozen=True, kw_only=True, rename="camel"):
    config_map: ObjectVolume | None = None
    secret: ObjectVolume | None = None
    downward_api: DownwardVolume | None = field(default=None, name="downwardAPI")
    service_account_token: TokenFile | None = None


class ProjectedVolume(Part, frozen=True, kw_only=True, rename="camel"):
    sources: tuple[Projection, ...] = ()


class ClaimVolume(Part, frozen=True, kw_only=True, rename="camel"):
    claim_name: str


class HostPath(Part, frozen=True, kw_only=True, rename="camel"):
    path: str
    type: str = ""


class Volume(Part, frozen=True, kw_only=True, rename="camel"):
    name: str
    empty_dir: dict[str, Any] | None = None
    config_map: ObjectVolume | None = None
    secret: ObjectVolume | None = None
    downward_api: DownwardVolume | None = field(default=None, name="downwardAPI")
    projected: ProjectedVolume | None = None
    host_path: HostPath | None = None
    persistent_volume_claim: ClaimVolume | None = None
    nfs: dict[str, Any] | None = None


class VolumeMount(Part, frozen=True, kw_only=True, rename="camel"):
    name: str
    mount_path: str
    sub_path: str = ""
    sub_path_expr: str = ""


class ContainerPort(Part, frozen=True, kw_only=True, rename="camel"):
    container_port: int
    name: str = ""


class ResourceRequirements(Part, frozen=True, kw_only=True, rename="camel"):
    limits: dict[str, str | int] = {}
    requests: dict[str, str | int] = {}


class ExecAction(Part, frozen=True, kw_only=True, rename="camel"):
    command: tuple[str, ...] = ()


class HttpHeader(Part, frozen=True, kw_only=True, rename="camel"):
    name: str
    value: str = ""


class HttpGetAction(Part, frozen=True, kw_only=True, rename="camel"):
    port: int | str
    path: str = "/"
    host: str = ""
    scheme: str = "HTTP"
    http_headers: tuple[HttpHeader, ...] = ()


class TcpSocketAction(Part, frozen=True, kw_only=True, rename="camel"):
    port: int | str
    host: str = ""


class Handler(Part, frozen=True, kw_only=True, rename="camel"):
    """The action of a probe or hook; exactly one field is set."""

    exec: ExecAction | None = None
    http_get: HttpGetAction | None = None
    tcp_socket: TcpSocketAction | None = None
    sleep: dict[str, int] | None = None


class Probe(Handler, frozen=True, kw_only=True, rename="camel"):
    initial_delay_seconds: int = 0
    timeout_seconds: int = 1
    period_seconds: int = 10
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_period_seconds: int | None = None


class Lifecycle(Part, frozen=True, kw_only=True, rename="camel"):
    post_start: Handler | None = None
    pre_stop: Handler | None = None


class Container(Part, frozen=True, kw_only=True, rename="camel"):
    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFrom, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    volume_mounts: tuple[VolumeMount, ...] = ()
    restart_policy: str = ""
    startup_probe: Probe | None = None
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    lifecycle: Lifecycle = Lifecycle()
    termination_message_path: str = "/dev/termination-log"
    termination_message_policy: str = "File"

    @property
    def is_sidecar(self) -> bool:
        """Only for init containers: a sidecar runs beside the main containers and ends after them."""
        return self.restart_policy == "Always"


class PodSpec(Part, frozen=True, kw_only=True, rename="camel"):
    node_name: str = ""
    hostname: str = ""
    subdomain: str = ""
    service_account_name: str = ""
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30
    active_deadline_seconds: int | None = None
    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()


class PodStatus(Part, frozen=True, kw_only=True, rename="camel"):
    phase: str = "Pending"
    start_time: str = ""
    conditions: tuple[dict[str, Any], ...] = ()


class Pod(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def has_ended(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")


class ConfigMap(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    data: dict[str, str] = {}
    binary_data: dict[str, bytes] = {}

    @property
    def files(self) -> dict[str, bytes]:
        return {key: value.encode() for key, value in self.data.items()} | self.binary_data


class Secret(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    data: dict[str, bytes] = {}

    @property
    def files(self) -> dict[str, bytes]:
        return self.data


class Named(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An object of which only the metadata matters."""


class Node(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    status: dict[str, Any] = {}


PODS = Resource(group="", version="v1", kind="Pod", plural="pods", model=Pod)
NODES = Resource(group="", version="v1", kind="Node", plural="nodes", model=Node, namespaced=False)
CONFIG_MAPS = Resource(group="", version="v1", kind="ConfigMap", plural="configmaps", model=ConfigMap)
SECRETS = Resource(group="", version="v1", kind="Secret", plural="secrets", model=Secret)
CLAIMS = Resource(group="", version="v1", kind="PersistentVolumeClaim", plural="persistentvolumeclaims", model=Named)
NAMESPACES = Resource(group="", version="v1", kind="Namespace", plural="namespaces", model=Named, namespaced=False)
LEASES = Resource(group="coordination.k8s.io", version="v1", kind="Lease", plural="leases", model=Lease)
