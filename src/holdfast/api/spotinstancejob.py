"""SpotInstanceJob: redundant copies of one training on machines that may be taken away."""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, field

from holdfast.api.checkpoint import S3_ENDPOINT, AzureAccount, S3Endpoint, S3Region, relative_folder
from holdfast.api.core.pod import LocalObjectReference, ObjectReference
from holdfast.api.kind import AGE, Kind, PrinterColumn
from holdfast.api.meta import ApiStruct, Object, OwnerReference
from holdfast.api.scalars import Seconds
from holdfast.api.schema.rules import (
    SHORT_NAME,
    Reason,
    Rule,
    duration_rule,
    immutable_while,
    suspend_immutable_while,
)
from holdfast.api.spotinstancejob_status import SpotInstanceJobStatus

Mode = Literal["auto", "container", "application"]

# On everything that is made for a job: Jobs, pods, ProvisionedInstances and CheckpointBackups.
SPOT_JOB_LABEL = "holdfast.dev/spot-job"
REPLICA_LABEL = "holdfast.dev/replica"
# As checkpointInterval: the operator computes the interval.
AUTO_INTERVAL = "auto"


class SpotCheckpointStore(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="has(self.bucket)",
            message="name the bucket, or the container of an Azure account, or remove checkpointStorage",
            field=".bucket",
            reason=Reason.REQUIRED,
        ),
        relative_folder("pathPrefix"),
        Rule(
            rule="(self.type == 'azure') == has(self.azureAccount)",
            message="azureAccount goes with type: azure, and that type needs it: write both or neither",
            field=".azureAccount",
        ),
        Rule(
            rule="!(has(self.region) || has(self.endpoint)) || self.type == 's3'",
            message="region and endpoint go with type: s3 only: write that type, or remove them",
            field=".type",
            reason=Reason.FORBIDDEN,
        ),
        S3_ENDPOINT,
    )

    type: Annotated[
        Literal["gcs", "s3", "azure"], Meta(description="Kind of the store; gcs (Google Cloud Storage) by default.")
    ] = "gcs"
    bucket: (
        Annotated[
            str,
            Meta(
                description="The bucket, without gs:// or s3://; for azure, the container.",
                min_length=1,
                max_length=222,
            ),
        ]
        | None
    ) = None
    path_prefix: (
        Annotated[
            str,
            Meta(
                description="Folder in the bucket. Without it {namespace}/{name}/{uid}, so that a new job of an old "
                "name never resumes its predecessor. Two jobs must not share one.",
                max_length=512,
            ),
        ]
        | None
    ) = None
    azure_account: AzureAccount | None = None
    region: S3Region | None = None
    endpoint: S3Endpoint | None = None
    secret_ref: Annotated[
        LocalObjectReference | None,
        Meta(
            description="Secret with the credentials of the store. Keys: service-account.json for gcs; "
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN for s3; AZURE_STORAGE_KEY for azure. "
            "Without it, the workload identity of the pod's service account. Only the sidecar gets it."
        ),
    ] = None


class CheckpointConfig(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        duration_rule("checkpointInterval", optional=False, word=AUTO_INTERVAL),
        Rule(
            rule="!self.checkpointImageRepo.contains('://') && !self.checkpointImageRepo.endsWith('/') && "
            "!self.checkpointImageRepo.contains('@') && self.checkpointImageRepo.matches('^[^/]+/[^ :]+$')",
            message="write a registry and a repository without scheme and tag, such as gcr.io/my-project/checkpoints",
            field=".checkpointImageRepo",
        ),
        Rule(
            rule="!has(self.checkpointStorage) || !has(self.mode) || self.mode != 'container'",
            message="checkpointStorage holds what the training saves by itself, and mode: container adds nothing to "
            "it: remove checkpointStorage, or write mode: application",
            field=".checkpointStorage",
            reason=Reason.FORBIDDEN,
        ),
    )

    checkpoint_image_repo: Annotated[
        str,
        Meta(
            description="Repository that checkpoint images are pushed to, such as gcr.io/my-project/checkpoints. It "
            "may be shared: tags carry the job's uid, and no job starts from the image of another.",
            min_length=1,
            max_length=512,
        ),
    ]
    checkpoint_interval: Annotated[
        str,
        Meta(
            description='Time between two checkpoints of a replica, such as "30m" or "1h30m"; or "auto": chosen '
            "from what a checkpoint costs and how long machines of this template last, between 1 minute and 6 hours. "
            "May be changed at any time.",
            max_length=16,
        ),
    ]
    mode: Annotated[
        Mode,
        Meta(
            description="How a replica is saved. application: the training saves by itself to CHECKPOINT_DIR and goes "
            "on from RESUME_FROM, as in a TrainingJob; images hold that folder. container: the runtime freezes the "
            "containers, and images hold their memory; nothing is asked of the program. auto (default): application "
            "where a container has GPUs, or checkpointStorage is given; else container, where nodes can restore one."
        ),
    ] = "auto"
    retention: Annotated[
        int,
        Meta(
            description="How many of the newest checkpoints keep their images; 3 by default. The last valid one, and "
            "one that a replica is being restored from, are never deleted. May be changed at any time.",
            ge=1,
            le=1000,
        ),
    ] = 3
    checkpoint_repo_credential_ref: Annotated[
        ObjectReference | None,
        Meta(
            description="Secret of type kubernetes.io/dockerconfigjson with the credentials of the repository, for "
            "pushing and for restoring. One of another namespace must list this namespace in its annotation "
            "holdfast.dev/allow-namespaces, and pods can't pull with it. Without it, and for Google's registries only, "
            "tokens of an hour are made from gcpCredentialsSecretRef."
        ),
    ] = None
    checkpoint_storage: Annotated[
        SpotCheckpointStore | None,
        Meta(
            description="Object store that holds what the training saves by itself (mode application), beside the "
            "images."
        ),
    ] = None


# A skeleton of batch/v1 JobTemplateSpec: enough to refuse at once what no Job would accept. All else is kept unseen.
_CONTAINER = {
    "type": "object",
    "description": "A container; only its name is looked at here.",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "description": "Name of the container.", "minLength": 1, "maxLength": 63}
    },
    "x-kubernetes-preserve-unknown-fields": True,
}
_POD_SPEC = {
    "type": "object",
    "description": "Specification of the pod.",
    "required": ["containers"],
    "properties": {
        "containers": {
            "type": "array",
            "description": "Containers of the pod.",
            "minItems": 1,
            "maxItems": 32,
            "items": _CONTAINER,
        },
        "restartPolicy": {
            "type": "string",
            "description": "Never (default) or OnFailure, as a Job demands. Both mean the same: a container that fails "
            "is not restarted, and another attempt follows from the newest checkpoint, as far as backoffLimit allows.",
            "enum": ["Never", "OnFailure"],
        },
    },
    "x-kubernetes-preserve-unknown-fields": True,
}


def _object(description: str, **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "required": [*properties],
        "properties": properties,
        "x-kubernetes-preserve-unknown-fields": True,
    }


_POD_COUNT = {"type": "integer", "format": "int32", "description": "1, which is the default: a replica is one pod."}
_JOB_SPEC = _object("Specification of the Job.", template=_object("Template of its pod.", spec=_POD_SPEC))
_JOB_SPEC["properties"] |= {
    "backoffLimit": {
        "type": "integer",
        "format": "int32",
        "minimum": 0,
        "description": "How many failures of the training itself are followed by a new attempt, over all replicas; 6 "
        "by default, as for a Job. Preemptions and lost nodes are not counted. Where a rule of podFailurePolicy says "
        "FailJob or FailIndex, no attempt of that replica follows.",
    },
    "activeDeadlineSeconds": {
        "type": "integer",
        "format": "int64",
        "minimum": 0,
        "description": "How long the job may run, over all attempts and without the time that it was suspended.",
    },
    "completions": _POD_COUNT,
    "parallelism": _POD_COUNT,
}
_JOB_TEMPLATE = _object(
    "Template of the Job that every replica runs, as in a CronJob (batch/v1 JobTemplateSpec). A replica is one pod. "
    "backoffLimit (6 by default) and activeDeadlineSeconds are counted by the operator, over all attempts of all "
    "replicas; pods get restartPolicy Never, whichever is written.",
    spec=_JOB_SPEC,
)


def _one_pod(name: str) -> Rule:
    return Rule(
        rule=f"!has(self.jobTemplate.spec.{name}) || self.jobTemplate.spec.{name} == 1",
        message="a replica is one pod: write 1, or leave it out; spec.replicas says how many copies there are",
        field=f".jobTemplate.spec.{name}",
    )


class SpotInstanceJobSpec(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (_one_pod("completions"), _one_pod("parallelism"))

    replicas: Annotated[
        int,
        Meta(
            description="Redundant copies of the training; 2 by default. The job succeeds when the first copy "
            "succeeds, and the others are then stopped. May be changed while the job runs: the copy that started last "
            "is stopped first.",
            ge=1,
            le=32,
        ),
    ] = 2
    job_template: Annotated[
        dict[str, Any],
        Meta(extra_json_schema=_JOB_TEMPLATE),
    ]
    checkpoint_config: Annotated[CheckpointConfig, Meta(description="How and how often replicas are checkpointed.")]
    spot_instance_vm_ref: Annotated[
        LocalObjectReference, Meta(description="The SpotInstanceVM that new machines are made from.")
    ] = field(name="spotInstanceVMRef")
    gcp_credentials_secret_ref: Annotated[
        ObjectReference,
        Meta(
            description="Secret whose key credentials.json holds the service account that makes machines. The operator "
            "may read it where an administrator has bound the ClusterRole holdfast-secrets. A Secret of another "
            "namespace must list the job's in its annotation holdfast.dev/allow-namespaces."
        ),
    ]
    suspend: Annotated[
        bool,
        Meta(
            description="true saves the training, stops it and gives its machines back; false goes on from the newest "
            "checkpoint."
        ),
    ] = False
    ttl_seconds_after_finished: (
        Annotated[
            Seconds,
            Meta(
                description="Delete the job so long after it ended; never without it. Its checkpoint images stay. May "
                "be changed at any time."
            ),
        ]
        | None
    ) = None


_STARTED = "has(self.status) && has(self.status.jobStatuses) && size(self.status.jobStatuses) > 0"
_ENDED = "has(self.status) && has(self.status.completionTime)"
_TOO_LATE = "the job has ended, so this would change nothing: delete it first, or create a new job"


class SpotInstanceJob(Object, frozen=True, kw_only=True):
    """Redundant copies of one training on spot machines, saved and brought back as images."""

    RULES: ClassVar = (
        SHORT_NAME,
        *immutable_while(
            (".spec.jobTemplate", ".spec.checkpointConfig.checkpointImageRepo", ".spec.spotInstanceVMRef"),
            while_=_STARTED,
            message="can't change once replicas were started, since they would no longer be copies of one training: "
            "create a new job",
        ),
        *immutable_while(
            (".spec.checkpointConfig.mode", ".spec.checkpointConfig.checkpointStorage"),
            while_=_STARTED,
            message="can't change once replicas were started, since they could no longer go on from what was saved: "
            "create a new job",
        ),
        *immutable_while((".spec.replicas",), while_=_ENDED, message=_TOO_LATE),
        suspend_immutable_while(while_=_ENDED, message=_TOO_LATE),
    )

    spec: Annotated[SpotInstanceJobSpec, Meta(description="What to run, on which machines, and how to save it.")]
    status: Annotated[
        SpotInstanceJobStatus | None, Meta(description="What the operator has found. Written by the operator alone.")
    ] = None


KIND = Kind(
    group="training.training.dcnlab.com",
    versions=("v1alpha1",),
    kind="SpotInstanceJob",
    plural="spotinstancejobs",
    short_name="sij",
    model=SpotInstanceJob,
    columns=(
        PrinterColumn(name="PHASE", path=".status.phase", description="Where the job stands."),
        PrinterColumn(name="REPLICAS", path=".spec.replicas", type="integer", description="Copies wished for."),
        PrinterColumn(name="ACTIVE", path=".status.activeReplicas", type="integer", description="Copies that run."),
        PrinterColumn(
            name="LAST-CHECKPOINT", path=".status.lastCheckpointTime", type="date", description="Since the newest one."
        ),
        AGE,
        PrinterColumn(
            name="VM", path=".spec.spotInstanceVMRef.name", wide=True, description="Template of the machines."
        ),
        # Not a date: kubectl prints those as ages, and has none for what is still to come.
        PrinterColumn(
            name="NEXT", path=".status.nextCheckpointTime", wide=True, description="When the next checkpoint is due."
        ),
        PrinterColumn(
            name="PREEMPTIONS",
            path=".status.restarts.preemption",
            type="integer",
            wide=True,
            description="Replicas whose machine was taken away.",
        ),
        PrinterColumn(name="MESSAGE", path=".status.message", wide=True, description="What the job waits for."),
        # Last: its name and digest take the width of a whole terminal.
        PrinterColumn(
            name="IMAGE", path=".status.lastCheckpointImage", wide=True, description="The newest checkpoint image."
        ),
    ),
)


def is_spot_job(owner: OwnerReference | None) -> bool:
    """Whether an object with this owner belongs to a SpotInstanceJob."""
    return owner is not None and owner.kind == KIND.kind and owner.api_version.partition("/")[0] == KIND.group
