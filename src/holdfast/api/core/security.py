"""As whom a pod's processes run."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from holdfast.api.meta import ApiStruct
from holdfast.api.rules import Rule

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
