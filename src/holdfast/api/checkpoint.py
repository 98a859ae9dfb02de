"""A TrainingJob's checkpoints: how often, where to, how many, and where from."""

from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta

from holdfast.api.core.pod import LocalObjectReference
from holdfast.api.meta import ApiStruct
from holdfast.api.scalars import AbsolutePath, DnsSubdomain, Quantity
from holdfast.api.schema.rules import Reason, Rule, duration_rule

StorageType = Literal["pvc", "s3", "gcs", "azure", "nfs"]

# Which fields belong to which type: those that it needs, and those that mean something for it. Some are of use for
# resumeFrom too, which may be in another store than the own checkpoints.
_NEEDED: dict[StorageType, tuple[str, ...]] = {
    "s3": ("s3Bucket",),
    "gcs": ("gcsBucket",),
    "azure": ("azureContainer", "azureAccount"),
    "nfs": ("nfsServer", "nfsPath"),
}
_ALLOWED: dict[StorageType, tuple[str, ...]] = {
    **_NEEDED,
    "pvc": ("pvcName", "size", "storageClassName"),
    "azure": ("azureContainer",),
}
_ALLOWED_FOR_RESUME: dict[StorageType, tuple[str, ...]] = {"s3": ("region", "endpoint"), "azure": ("azureAccount",)}
_SCHEMES = {"s3": "s3://", "azure": "az://"}


def _required_for(storage: str, name: str) -> Rule:
    return Rule(
        rule=f"self.type != '{storage}' || has(self.{name})",
        message=f"storage of type {storage} needs {name}",
        field=f".{name}",
        reason=Reason.REQUIRED,
    )


def _only_for(storage: str, name: str) -> Rule:
    return Rule(
        rule=f"!has(self.{name}) || self.type == '{storage}'",
        message=f"{name} goes with type: {storage} only: write that type, or remove {name}",
        field=f".{name}",
        reason=Reason.FORBIDDEN,
    )


def _only_for_or_resume_from(storage: str, name: str) -> Rule:
    scheme = _SCHEMES[storage]
    return Rule(
        rule=f"!has(self.storage) || !has(self.storage.{name}) || self.storage.type == '{storage}' || "
        f"(has(self.resumeFrom) && self.resumeFrom.startsWith('{scheme}'))",
        message=f"{name} goes with type: {storage} only, or with a resumeFrom of {scheme}: write that type, or remove "
        f"{name}",
        field=f".storage.{name}",
        reason=Reason.FORBIDDEN,
    )


# The address of an object store, as all kinds write it.

AzureAccount: TypeAlias = Annotated[
    str,
    Meta(
        description="azure: the storage account that holds the container.", max_length=24, pattern=r"^[a-z0-9]{3,24}$"
    ),
]
S3Region: TypeAlias = Annotated[
    str, Meta(description="s3: region of the bucket, such as eu-central-1.", max_length=64, pattern="^[a-z0-9-]+$")
]
S3Endpoint: TypeAlias = Annotated[
    str, Meta(description="s3: address of an S3-compatible server, if not AWS.", max_length=512)
]
S3_ENDPOINT = Rule(
    rule="!has(self.endpoint) || self.endpoint.matches('^https?://[^/ ]+/?$')",
    message="write the address of the S3-compatible server, such as https://minio.storage.svc:9000",
    field=".endpoint",
)


def relative_folder(name: str) -> Rule:
    return Rule(
        rule=f"!has(self.{name}) || self.{name}.matches('^[^/]+(/[^/]+)*$') && "
        f"!self.{name}.matches('(^|/)[.][.]?(/|$)')",
        message="write a relative folder such as team-a/bert, without '/' at either end and without '.' or '..'",
        field=f".{name}",
    )


class CheckpointStorage(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        *(_required_for(storage, name) for storage, names in _NEEDED.items() for name in names),
        *(_only_for(storage, name) for storage, names in _ALLOWED.items() for name in names),
        Rule(
            rule="!has(self.pvcName) || (!has(self.size) && !has(self.storageClassName))",
            message="pvcName uses a claim that is there already, size and storageClassName describe a new one: "
            "write one or the other",
            field=".pvcName",
        ),
        relative_folder("prefix"),
        S3_ENDPOINT,
    )

    type: Annotated[
        StorageType,
        Meta(
            description="Where checkpoints are kept. pvc (default): a PersistentVolumeClaim, either the one named by "
            "pvcName or a new one. s3, gcs, azure: an object store; the pods upload in the background. nfs: a folder "
            "of an NFS server."
        ),
    ] = "pvc"
    pvc_name: Annotated[DnsSubdomain, Meta(description="pvc: the existing claim to use.")] | None = None
    size: (
        Annotated[
            Quantity,
            Meta(
                description="pvc: size of the claim to create, named {job}-checkpoints; without it, as the operator is "
                "configured."
            ),
        ]
        | None
    ) = None
    storage_class_name: (
        Annotated[
            DnsSubdomain,
            Meta(
                description="pvc: class of the claim to create; the cluster's default without it. With several "
                "workers it must offer ReadWriteMany."
            ),
        ]
        | None
    ) = None
    s3_bucket: (
        Annotated[
            str,
            Meta(
                description="s3: the bucket, without s3://.",
                max_length=63,
                pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$",
            ),
        ]
        | None
    ) = None
    region: S3Region | None = None
    endpoint: S3Endpoint | None = None
    gcs_bucket: (
        Annotated[
            str,
            Meta(
                description="gcs: the bucket, without gs://.", max_length=222, pattern=r"^[a-z0-9][a-z0-9._-]+[a-z0-9]$"
            ),
        ]
        | None
    ) = None
    azure_container: (
        Annotated[
            str, Meta(description="azure: the blob container.", max_length=63, pattern=r"^[a-z0-9][a-z0-9-]{2,62}$")
        ]
        | None
    ) = None
    azure_account: AzureAccount | None = None
    nfs_server: (
        Annotated[
            str, Meta(description="nfs: host name or address of the server.", max_length=253, pattern=r"^[^\s/]+$")
        ]
        | None
    ) = None
    nfs_path: (
        Annotated[
            AbsolutePath,
            Meta(
                description="nfs: the exported path, writable for the pods' user. The restricted pod security level "
                "allows NFS through a claim only: use type pvc there."
            ),
        ]
        | None
    ) = None
    prefix: (
        Annotated[
            str,
            Meta(
                description="Folder in the bucket or volume. Without it {namespace}/{name}/{uid}, so that a new job of "
                "an old name never resumes its predecessor by accident. Two jobs must not share a prefix.",
                max_length=512,
            ),
        ]
        | None
    ) = None
    secret_ref: Annotated[
        LocalObjectReference | None,
        Meta(
            description="Secret with the credentials of the store. Keys: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
            "AWS_SESSION_TOKEN for s3; service-account.json for gcs; AZURE_STORAGE_KEY for azure, and "
            "AZURE_STORAGE_ENDPOINT where that is not the public cloud. Without it: a Secret named "
            "aws-credentials if type is s3 and it is there, else the workload identity of the service account. Only "
            "the sidecars of the workers and of TensorBoard get it, never another container."
        ),
    ] = None


class Checkpoint(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        duration_rule("interval", optional=True),
        Rule(
            rule="!has(self.resumeFrom) || self.resumeFrom.startsWith('oci://') || "
            "(self.resumeFrom.matches('^(s3|gs|az)://[^/ ]+(/[^/ ]+)+/?$') || "
            "self.resumeFrom.matches('^/?[^:/ ][^: ]*$')) && !self.resumeFrom.matches('(^|/)[.][.]?(/|$)')",
            message="write the folder of a checkpoint, without '.' or '..': s3://bucket/path, gs://bucket/path, "
            "az://container/path, or a path on the checkpoint volume or on one of podTemplate",
            field=".resumeFrom",
        ),
        Rule(
            rule="!has(self.resumeFrom) || !self.resumeFrom.startsWith('oci://') || self.resumeFrom.matches("
            "'^oci://([a-zA-Z0-9-]+[.][a-zA-Z0-9.-]*[a-zA-Z0-9](:[0-9]+)?|[a-zA-Z0-9-]+:[0-9]+|localhost)"
            "(/[a-z0-9]+([._-]+[a-z0-9]+)*)+(:[a-zA-Z0-9_][a-zA-Z0-9._-]*|@sha256:[0-9a-f]{64})$')",
            message="write an image that a CheckpointBackup has pushed, by its digest or its tag: "
            "oci://registry.example.com/repository@sha256:… or oci://registry.example.com/repository:tag",
            field=".resumeFrom",
        ),
        Rule(
            rule="!has(self.resumeFrom) || !self.resumeFrom.startsWith('az://') || "
            "(has(self.storage) && has(self.storage.azureAccount))",
            message="resuming from az:// needs storage.azureAccount: the address does not name the account",
            field=".storage.azureAccount",
            reason=Reason.REQUIRED,
        ),
        *(_only_for_or_resume_from(storage, name) for storage, names in _ALLOWED_FOR_RESUME.items() for name in names),
        Rule(
            rule="!has(self.storage) || !has(self.storage.secretRef) || self.storage.type in ['s3', 'gcs', 'azure'] || "
            "(has(self.resumeFrom) && self.resumeFrom.matches('^(s3|gs|az)://'))",
            message="secretRef goes with s3, gcs and azure only: pvc and nfs need no credentials, unless resumeFrom is "
            "in an object store",
            field=".storage.secretRef",
            reason=Reason.FORBIDDEN,
        ),
        Rule(
            rule="!has(self.resumeFrom) || !has(self.enabled) || self.enabled",
            message="a job with checkpoints switched off can't resume: remove enabled: false, or remove resumeFrom",
            field=".resumeFrom",
            reason=Reason.FORBIDDEN,
        ),
    )

    enabled: Annotated[
        bool,
        Meta(
            description="Whether checkpoints are kept; true as soon as this block is written. Without checkpoints a "
            "job that loses a worker starts from the beginning."
        ),
    ] = True
    frequency: Annotated[
        int,
        Meta(
            description="Save after every so many epochs; 1 by default. Given to the training as CHECKPOINT_FREQUENCY.",
            ge=1,
        ),
    ] = 1
    interval: (
        Annotated[
            str,
            Meta(
                description='Save after this much time too, such as "30m" or "1h30m", for epochs that take long. '
                "Counts beside frequency: whichever comes first. CHECKPOINT_INTERVAL_SECONDS.",
                max_length=16,
            ),
        ]
        | None
    ) = None
    storage: Annotated[
        CheckpointStorage | None,
        Meta(
            description="Where checkpoints are kept. Without it, a new PersistentVolumeClaim of the cluster's default "
            "class. Each checkpoint is a folder checkpoint-epoch-N. Deleting the job keeps them."
        ),
    ] = None
    retention: Annotated[
        int,
        Meta(
            description="How many of the newest checkpoints are kept, beside the best; 3 by default. The last valid "
            "one is never deleted. May be changed at any time, and counts from the next attempt on.",
            ge=1,
            le=1000,
        ),
    ] = 3
    resume_from: (
        Annotated[
            str,
            Meta(
                description="Checkpoint of another job to start from: s3://bucket/path, gs://bucket/path, "
                "az://container/path, a path below a mount of podTemplate, or else a path on the checkpoint volume "
                "(pvc, nfs) from its root; or the image of a CheckpointBackup in the mode application, "
                "oci://host/repository@sha256:… or :tag, which is pulled with podTemplate.imagePullSecrets. It need "
                "not be in the storage that this job writes to; its store is reached with secretRef, region, endpoint "
                "and azureAccount of storage. Used until the job has a checkpoint of its own.",
                max_length=1024,
            ),
        ]
        | None
    ) = None
