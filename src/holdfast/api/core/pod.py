"""What a container is given: environment, resources and mounts."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from holdfast.api.meta import ApiStruct
from holdfast.api.scalars import DnsLabel, DnsSubdomain, Quantities, Quantity
from holdfast.api.schema.rules import Reason, Rule

_KEY = Meta(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")


class ConfigMapKeySelector(ApiStruct, frozen=True, kw_only=True):
    name: Annotated[DnsSubdomain, Meta(description="Name of the ConfigMap.")]
    key: Annotated[str, _KEY, Meta(description="The key whose value is taken.")]
    optional: Annotated[bool, Meta(description="Whether the ConfigMap or its key may be missing.")] = False


class SecretKeySelector(ApiStruct, frozen=True, kw_only=True):
    name: Annotated[DnsSubdomain, Meta(description="Name of the Secret.")]
    key: Annotated[str, _KEY, Meta(description="The key whose value is taken.")]
    optional: Annotated[bool, Meta(description="Whether the Secret or its key may be missing.")] = False


class ObjectFieldSelector(ApiStruct, frozen=True, kw_only=True):
    field_path: Annotated[
        str, Meta(description="Path of the field in the pod, such as metadata.name.", min_length=1, max_length=256)
    ]
    api_version: Annotated[
        str, Meta(description="Version of the schema that fieldPath is written in.", max_length=64)
    ] = "v1"


class ResourceFieldSelector(ApiStruct, frozen=True, kw_only=True):
    resource: Annotated[str, Meta(description="The resource, such as limits.memory.", min_length=1, max_length=317)]
    container_name: Annotated[DnsLabel, Meta(description="The container; required in volumes.")] = ""
    divisor: Annotated[Quantity, Meta(description="Unit of the value, such as 1Mi; 1 when left out.")] | None = None


class EnvVarSourceField(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="[has(self.fieldRef), has(self.resourceFieldRef), has(self.configMapKeyRef), has(self.secretKeyRef)]"
            ".filter(given, given).size() == 1",
            message="name exactly one source: fieldRef, resourceFieldRef, configMapKeyRef or secretKeyRef",
        ),
    )

    field_ref: Annotated[ObjectFieldSelector | None, Meta(description="A field of the pod itself.")] = None
    resource_field_ref: Annotated[
        ResourceFieldSelector | None, Meta(description="A request or limit of a container.")
    ] = None
    config_map_key_ref: Annotated[ConfigMapKeySelector | None, Meta(description="A key of a ConfigMap.")] = None
    secret_key_ref: Annotated[SecretKeySelector | None, Meta(description="A key of a Secret.")] = None


class EnvVarField(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="!(has(self.value) && has(self.valueFrom))",
            message="write either value or valueFrom, not both",
            field=".valueFrom",
            reason=Reason.FORBIDDEN,
        ),
    )

    name: Annotated[
        str,
        Meta(description="Name of the variable.", min_length=1, max_length=253, pattern=r"^[ -<>-~]+$"),
    ]
    value: (
        Annotated[
            str,
            Meta(
                description="Its value. $(NAME) stands for a variable defined earlier; $$(NAME) for the text itself. "
                "A number or true/false must be quoted.",
                max_length=32768,
            ),
        ]
        | None
    ) = None
    value_from: Annotated[EnvVarSourceField | None, Meta(description="Where the value is taken from, if not here.")] = (
        None
    )


def reserved_env_rule(*, but: str = "") -> Rule:
    """For structs with a list env of these; `but` is the one of ours that users may set."""
    allowed = f" || variable.name == '{but}'" if but else ""
    return Rule(
        rule=f"!has(self.env) || self.env.all(variable, !variable.name.startsWith('HOLDFAST_'){allowed})",
        message="variables that start with HOLDFAST_ are set by the operator"
        + (f", all but {but}" if but else "")
        + ": choose another name",
        field=".env",
        reason=Reason.FORBIDDEN,
    )


def _quantities_rule(side: str) -> Rule:
    return Rule(
        rule=f"!has(self.{side}) || self.{side}.all(name, !string(self.{side}[name]).startsWith('-') && "
        f"(name != 'nvidia.com/gpu' || string(self.{side}[name]).matches('^[0-9]+$')))",
        message='no amount may be negative, and nvidia.com/gpu is a whole number, such as 4 or "4"',
        field=f".{side}",
    )


class ResourceRequirementsField(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        _quantities_rule("limits"),
        _quantities_rule("requests"),
        Rule(
            rule="!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) || "
            "quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)",
            message="no request may be larger than its limit: raise the limit, or lower the request",
            field=".requests",
        ),
        Rule(
            rule="!has(self.requests) || !has(self.limits) || !('nvidia.com/gpu' in self.requests) || "
            "!('nvidia.com/gpu' in self.limits) || "
            "string(self.requests['nvidia.com/gpu']) == string(self.limits['nvidia.com/gpu'])",
            message="GPUs can't be shared or overcommitted: request as many nvidia.com/gpu as the limit says, or leave "
            "one of the two out",
            field=".requests",
        ),
    )

    limits: Annotated[
        Quantities,
        Meta(description="The most that the container may use, by resource: cpu, memory, nvidia.com/gpu and others."),
    ] = {}
    requests: Annotated[
        Quantities,
        Meta(description="What the container is guaranteed and scheduled by; where it is left out, the limit counts."),
    ] = {}


class VolumeMountField(ApiStruct, frozen=True, kw_only=True):
    name: Annotated[DnsLabel, Meta(description="Name of the volume, as in volumes.")]
    mount_path: Annotated[
        str,
        Meta(description="Where it appears in the container.", min_length=1, max_length=1024, pattern="^/[^:]*$"),
    ]
    sub_path: Annotated[str, Meta(description="The folder of the volume to mount, if not all.", max_length=1024)] = ""
    sub_path_expr: Annotated[
        str, Meta(description="The same, with $(NAME) replaced from the environment.", max_length=1024)
    ] = ""
    read_only: Annotated[bool, Meta(description="Whether writing is refused.")] = False
    mount_propagation: Annotated[
        Literal["None", "HostToContainer", "Bidirectional"] | None,
        Meta(description="Whether mounts made later are seen on the other side."),
    ] = None


# Names of other objects.


class LocalObjectReference(ApiStruct, frozen=True, kw_only=True):
    name: Annotated[DnsSubdomain, Meta(description="Name of the object, in the same namespace.")]


class ObjectReference(ApiStruct, frozen=True, kw_only=True):
    name: Annotated[DnsSubdomain, Meta(description="Name of the object.")]
    namespace: Annotated[
        DnsLabel,
        Meta(description="Namespace of the object; without it, the namespace of the object that refers to it."),
    ] = ""


# As whom a pod's processes run.

Id = Annotated[int, Meta(ge=0, extra_json_schema={"format": "int64"})]


class SELinuxOptions(ApiStruct, frozen=True, kw_only=True):
    user: Annotated[str, Meta(description="SELinux user.", max_length=253)] = ""
    role: Annotated[str, Meta(description="SELinux role.", max_length=253)] = ""
    type: Annotated[str, Meta(description="SELinux type.", max_length=253)] = ""
    level: Annotated[str, Meta(description="SELinux level.", max_length=253)] = ""


class SecurityProfile(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="(self.type == 'Localhost') == has(self.localhostProfile)",
            message="localhostProfile names the profile of type Localhost, and goes with no other type",
            field=".localhostProfile",
        ),
    )

    type: Annotated[
        Literal["RuntimeDefault", "Unconfined", "Localhost"],
        Meta(description="The runtime's own profile, none, or one that lies on the node."),
    ]
    localhost_profile: (
        Annotated[str, Meta(description="The profile on the node.", min_length=1, max_length=1024)] | None
    ) = None


class Sysctl(ApiStruct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(description="Name of the kernel parameter.", min_length=1, max_length=253)]
    value: Annotated[str, Meta(description="Its value.", max_length=1024)]


class PodSecurityContext(ApiStruct, frozen=True, kw_only=True):
    run_as_user: Annotated[Id, Meta(description="User id of the processes.")] | None = None
    run_as_group: Annotated[Id, Meta(description="Group id of the processes.")] | None = None
    run_as_non_root: Annotated[bool, Meta(description="Whether a process of root is refused.")] | None = None
    fs_group: Annotated[Id, Meta(description="Group that owns the volumes that can change hands.")] | None = None
    fs_group_change_policy: Annotated[
        Literal["OnRootMismatch", "Always"] | None,
        Meta(description="Whether the owner of every file is set anew at every start; OnRootMismatch is faster."),
    ] = None
    supplemental_groups: Annotated[
        tuple[Id, ...],
        Meta(
            description="Further groups of the processes.",
            max_length=32,
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    supplemental_groups_policy: Annotated[
        Literal["Merge", "Strict"] | None,
        Meta(description="Whether groups from the image's /etc/group count too (Merge) or not (Strict)."),
    ] = None
    seccomp_profile: Annotated[SecurityProfile | None, Meta(description="Which system calls are allowed.")] = None
    app_armor_profile: Annotated[SecurityProfile | None, Meta(description="The AppArmor profile.")] = None
    se_linux_options: Annotated[SELinuxOptions | None, Meta(description="The SELinux context.")] = None
    sysctls: Annotated[
        tuple[Sysctl, ...], Meta(description="Kernel parameters of the pod's namespaces.", max_length=32)
    ] = ()
