"""Volumes of a pod, and the sources that training uses."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from holdfast.api.core.pod import LocalObjectReference, ObjectFieldSelector, ResourceFieldSelector
from holdfast.api.meta import ApiStruct
from holdfast.api.scalars import AbsolutePath, DnsLabel, DnsSubdomain, Image, Quantity
from holdfast.api.schema.rules import Rule

Mode = Annotated[
    int, Meta(description="Permission bits of the files, as a decimal number (420 is 0644).", ge=0, le=511)
]
ReadOnly = Annotated[bool, Meta(description="Whether the volume can't be written to.")]
FsType = Annotated[str, Meta(description="File system of the volume; the driver's default without it.", max_length=64)]


class KeyToPathField(ApiStruct, frozen=True, kw_only=True):
    key: Annotated[str, Meta(description="The key.", min_length=1, max_length=253)]
    path: Annotated[str, Meta(description="The file that gets its value, relative to the mount.", max_length=1024)]
    mode: Mode | None = None


Items = Annotated[
    tuple[KeyToPathField, ...], Meta(description="Which keys become files; all without it.", max_length=64)
]
Optional = Annotated[bool, Meta(description="Whether it may be missing.")]


class EmptyDirVolumeSource(ApiStruct, frozen=True, kw_only=True):
    medium: Annotated[
        Literal["", "Memory", "HugePages"], Meta(description="Memory for a folder in RAM; the node's disk without it.")
    ] = ""
    size_limit: Annotated[Quantity, Meta(description="The most that it may hold.")] | None = None


class HostPathVolumeSource(ApiStruct, frozen=True, kw_only=True):
    path: Annotated[AbsolutePath, Meta(description="The path on the node.")]
    type: Annotated[
        Literal["", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"],
        Meta(description="What must be there, or is made; nothing is checked without it."),
    ] = ""


class ConfigMapVolumeSource(ApiStruct, frozen=True, kw_only=True):
    name: Annotated[DnsSubdomain, Meta(description="Name of the ConfigMap.")]
    items: Items = ()
    default_mode: Mode | None = None
    optional: Optional = False


class SecretVolumeSource(ApiStruct, frozen=True, kw_only=True):
    secret_name: Annotated[DnsSubdomain, Meta(description="Name of the Secret.")]
    items: Items = ()
    default_mode: Mode | None = None
    optional: Optional = False


class PersistentVolumeClaimVolumeSource(ApiStruct, frozen=True, kw_only=True):
    claim_name: Annotated[DnsSubdomain, Meta(description="Name of the claim, in the same namespace.")]
    read_only: ReadOnly = False


class NFSVolumeSource(ApiStruct, frozen=True, kw_only=True):
    server: Annotated[str, Meta(description="Host name or address of the server.", min_length=1, max_length=253)]
    path: Annotated[AbsolutePath, Meta(description="The exported path.")]
    read_only: ReadOnly = False


class CSIVolumeSource(ApiStruct, frozen=True, kw_only=True):
    driver: Annotated[DnsSubdomain, Meta(description="Name of the CSI driver.")]
    read_only: ReadOnly = False
    fs_type: FsType = ""
    volume_attributes: Annotated[
        dict[str, Annotated[str, Meta(max_length=4096)]],
        Meta(description="Attributes that the driver understands.", max_length=32),
    ] = {}
    node_publish_secret_ref: Annotated[
        LocalObjectReference | None, Meta(description="Secret that the driver gets when it mounts the volume.")
    ] = None


class ImageVolumeSource(ApiStruct, frozen=True, kw_only=True):
    reference: Annotated[Image, Meta(description="The OCI image or artifact whose files are mounted, read-only.")]
    pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"] | None, Meta(description="When it is pulled again.")
    ] = None


class DownwardAPIVolumeFile(ApiStruct, frozen=True, kw_only=True):
    path: Annotated[str, Meta(description="The file, relative to the mount.", min_length=1, max_length=1024)]
    field_ref: Annotated[ObjectFieldSelector | None, Meta(description="A field of the pod.")] = None
    resource_field_ref: Annotated[
        ResourceFieldSelector | None, Meta(description="A request or limit of a container.")
    ] = None
    mode: Mode | None = None


class DownwardAPIVolumeSource(ApiStruct, frozen=True, kw_only=True):
    items: Annotated[
        tuple[DownwardAPIVolumeFile, ...], Meta(description="The files and what they hold.", max_length=32)
    ] = ()
    default_mode: Mode | None = None


class DownwardAPIProjection(ApiStruct, frozen=True, kw_only=True):
    items: Annotated[
        tuple[DownwardAPIVolumeFile, ...], Meta(description="The files and what they hold.", max_length=32)
    ] = ()


class ConfigMapProjection(ApiStruct, frozen=True, kw_only=True):
    name: Annotated[DnsSubdomain, Meta(description="Name of the ConfigMap.")]
    items: Items = ()
    optional: Optional = False


class SecretProjection(ApiStruct, frozen=True, kw_only=True):
    name: Annotated[DnsSubdomain, Meta(description="Name of the Secret.")]
    items: Items = ()
    optional: Optional = False


class ServiceAccountTokenProjection(ApiStruct, frozen=True, kw_only=True):
    path: Annotated[str, Meta(description="The file that holds the token.", min_length=1, max_length=1024)]
    audience: Annotated[str, Meta(description="Whom the token is for; the API server without it.", max_length=253)] = ""
    expiration_seconds: (
        Annotated[
            int,
            Meta(
                description="How long a token is valid; it is renewed in time.",
                ge=600,
                extra_json_schema={"format": "int64"},
            ),
        ]
        | None
    ) = None


class VolumeProjection(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="[has(self.configMap), has(self.secret), has(self.downwardAPI), has(self.serviceAccountToken)]"
            ".filter(given, given).size() == 1",
            message="each source is exactly one of configMap, secret, downwardAPI and serviceAccountToken",
        ),
    )

    config_map: Annotated[ConfigMapProjection | None, Meta(description="Files from a ConfigMap.")] = None
    secret: Annotated[SecretProjection | None, Meta(description="Files from a Secret.")] = None
    downward_api: Annotated[DownwardAPIProjection | None, Meta(description="Files about the pod itself.")] = field(
        name="downwardAPI", default=None
    )
    service_account_token: Annotated[
        ServiceAccountTokenProjection | None,
        Meta(description="A token of the pod's service account. The operator may forbid it."),
    ] = None


class ProjectedVolumeSource(ApiStruct, frozen=True, kw_only=True):
    sources: Annotated[
        tuple[VolumeProjection, ...], Meta(description="What is put together in one folder.", max_length=16)
    ] = ()
    default_mode: Mode | None = None


class VolumeField(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="[has(self.emptyDir), has(self.hostPath), has(self.configMap), has(self.secret), "
            "has(self.persistentVolumeClaim), has(self.nfs), has(self.csi), has(self.image), has(self.projected), "
            "has(self.downwardAPI)].filter(given, given).size() == 1",
            message="a volume has exactly one source: emptyDir, hostPath, configMap, secret, persistentVolumeClaim, "
            "nfs, csi, image, projected or downwardAPI",
        ),
    )

    name: Annotated[DnsLabel, Meta(description="Name of the volume, for volumeMounts.")]
    empty_dir: Annotated[
        EmptyDirVolumeSource | None, Meta(description="An empty folder that lives as long as the pod.")
    ] = None
    host_path: Annotated[
        HostPathVolumeSource | None,
        Meta(description="A path of the node. The namespace's pod security level, or the operator, may forbid it."),
    ] = None
    config_map: Annotated[ConfigMapVolumeSource | None, Meta(description="Files from a ConfigMap.")] = None
    secret: Annotated[SecretVolumeSource | None, Meta(description="Files from a Secret.")] = None
    persistent_volume_claim: Annotated[
        PersistentVolumeClaimVolumeSource | None,
        Meta(description="A claim; with several workers it must be ReadWriteMany or ReadOnlyMany."),
    ] = None
    nfs: Annotated[NFSVolumeSource | None, Meta(description="A folder of an NFS server.")] = None
    csi: Annotated[CSIVolumeSource | None, Meta(description="An inline volume of a CSI driver.")] = None
    image: Annotated[ImageVolumeSource | None, Meta(description="The files of an OCI image, such as a data set.")] = (
        None
    )
    projected: Annotated[ProjectedVolumeSource | None, Meta(description="Several sources in one folder.")] = None
    downward_api: Annotated[DownwardAPIVolumeSource | None, Meta(description="Files about the pod itself.")] = field(
        name="downwardAPI", default=None
    )
