"""Pods with all that is needed to run them: what a kubelet reads beyond what controllers cache."""

from typing import Any

from msgspec import field

from holdfast.api.core.objects import Container, Pod, PodSpec, Volume
from holdfast.api.meta import ApiStruct
from holdfast.cluster.protocol import Resource
from holdfast.errors import HoldfastError


class KeyRef(ApiStruct, frozen=True, kw_only=True):
    name: str = ""
    key: str = ""
    optional: bool = False


class FieldRef(ApiStruct, frozen=True, kw_only=True):
    field_path: str


class ResourceFieldRef(ApiStruct, frozen=True, kw_only=True):
    resource: str
    container_name: str = ""
    divisor: str | int | None = None


class EnvVarSource(ApiStruct, frozen=True, kw_only=True):
    field_ref: FieldRef | None = None
    resource_field_ref: ResourceFieldRef | None = None
    config_map_key_ref: KeyRef | None = None
    secret_key_ref: KeyRef | None = None


class EnvVar(ApiStruct, frozen=True, kw_only=True):
    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


class EnvFrom(ApiStruct, frozen=True, kw_only=True):
    prefix: str = ""
    config_map_ref: KeyRef | None = None
    secret_ref: KeyRef | None = None


class KeyToPath(ApiStruct, frozen=True, kw_only=True):
    key: str
    path: str


class ObjectVolume(ApiStruct, frozen=True, kw_only=True):
    """A ConfigMap or Secret as files; a volume spells the name of a Secret `secretName`."""

    name: str = ""
    secret_name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool = False


class DownwardFile(ApiStruct, frozen=True, kw_only=True):
    path: str
    field_ref: FieldRef | None = None
    resource_field_ref: ResourceFieldRef | None = None


class DownwardVolume(ApiStruct, frozen=True, kw_only=True):
    items: tuple[DownwardFile, ...] = ()


class TokenFile(ApiStruct, frozen=True, kw_only=True):
    """A service account token of the pod for one audience."""

    path: str
    audience: str = ""


class Projection(ApiStruct, frozen=True, kw_only=True):
    config_map: ObjectVolume | None = None
    secret: ObjectVolume | None = None
    downward_api: DownwardVolume | None = field(default=None, name="downwardAPI")
    service_account_token: TokenFile | None = None


class ProjectedVolume(ApiStruct, frozen=True, kw_only=True):
    sources: tuple[Projection, ...] = ()


class HostPath(ApiStruct, frozen=True, kw_only=True):
    path: str
    type: str = ""


class MountableVolume(Volume, frozen=True, kw_only=True):
    name: str
    empty_dir: dict[str, Any] | None = None
    config_map: ObjectVolume | None = None
    secret: ObjectVolume | None = None
    downward_api: DownwardVolume | None = field(default=None, name="downwardAPI")
    projected: ProjectedVolume | None = None
    host_path: HostPath | None = None
    nfs: dict[str, Any] | None = None


class VolumeMount(ApiStruct, frozen=True, kw_only=True):
    name: str
    mount_path: str
    sub_path: str = ""
    sub_path_expr: str = ""


class ContainerPort(ApiStruct, frozen=True, kw_only=True):
    container_port: int
    name: str = ""


class ExecAction(ApiStruct, frozen=True, kw_only=True):
    command: tuple[str, ...] = ()


class HttpHeader(ApiStruct, frozen=True, kw_only=True):
    name: str
    value: str = ""


class HttpGetAction(ApiStruct, frozen=True, kw_only=True):
    port: int | str
    path: str = "/"
    host: str = ""
    scheme: str = "HTTP"
    http_headers: tuple[HttpHeader, ...] = ()


class TcpSocketAction(ApiStruct, frozen=True, kw_only=True):
    port: int | str
    host: str = ""


class Handler(ApiStruct, frozen=True, kw_only=True):
    """The action of a probe or hook; exactly one field is set."""

    exec: ExecAction | None = None
    http_get: HttpGetAction | None = None
    tcp_socket: TcpSocketAction | None = None
    sleep: dict[str, int] | None = None


class Probe(Handler, frozen=True, kw_only=True):
    initial_delay_seconds: int = 0
    timeout_seconds: int = 1
    period_seconds: int = 10
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_period_seconds: int | None = None


class Lifecycle(ApiStruct, frozen=True, kw_only=True):
    post_start: Handler | None = None
    pre_stop: Handler | None = None


class RunnableContainer(Container, frozen=True, kw_only=True):
    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFrom, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    startup_probe: Probe | None = None
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    lifecycle: Lifecycle = Lifecycle()
    termination_message_path: str = "/dev/termination-log"
    termination_message_policy: str = "File"


class RunnablePodSpec(PodSpec, frozen=True, kw_only=True):
    hostname: str = ""
    subdomain: str = ""
    service_account_name: str = ""
    termination_grace_period_seconds: int = 30
    active_deadline_seconds: int | None = None
    init_containers: tuple[RunnableContainer, ...] = ()
    containers: tuple[RunnableContainer, ...] = ()
    volumes: tuple[MountableVolume, ...] = ()


class RunnablePod(Pod, frozen=True, kw_only=True):
    spec: RunnablePodSpec = RunnablePodSpec()


PODS = Resource(group="", version="v1", kind="Pod", plural="pods", model=RunnablePod)


# Why a container does not run, and whether a retry can help.


class RetryLater(HoldfastError):
    """A missing dependency may still appear: the pod waits and retries. `reason` is what kubectl shows."""

    reason = "ContainerCreating"


class ConfigError(RetryLater):
    """The configuration of a container refers to an object or key that does not exist (yet)."""

    reason = "CreateContainerConfigError"


class PodRejected(HoldfastError):
    """This node will never run the pod with this spec. `reason` goes into the pod's status."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
