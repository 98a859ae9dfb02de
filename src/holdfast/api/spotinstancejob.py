"""SpotInstanceJob: redundant copies of one training on machines that may be taken away."""

from typing import Annotated, Any, ClassVar

from msgspec import Meta, field

from holdfast.api.core.pod import LocalObjectReference, ObjectReference
from holdfast.api.kind import AGE, Kind, PrinterColumn
from holdfast.api.meta import ApiStruct, Conditions, Object, ObservedGeneration
from holdfast.api.scalars import Count, Timestamp, list_map_keys
from holdfast.api.schema.rules import NAME_WITH_ROOM_FOR_SUFFIXES, Rule, duration_rule, immutable_while


class SpotCheckpointStore(ApiStruct, frozen=True, kw_only=True):
    type: Annotated[str, Meta(description="Kind of the store, such as gcs.", min_length=1, max_length=32)] | None = None
    bucket: Annotated[str, Meta(description="The bucket.", min_length=1, max_length=222)] | None = None
    path_prefix: Annotated[str, Meta(description="Folder in the bucket.", max_length=512)] | None = None


class CheckpointConfig(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        duration_rule("checkpointInterval", optional=False),
        Rule(
            rule="!self.checkpointImageRepo.contains('://') && !self.checkpointImageRepo.endsWith('/') && "
            "!self.checkpointImageRepo.contains('@') && self.checkpointImageRepo.matches('^[^/]+/[^ :]+$')",
            message="write a registry and a repository without scheme and tag, such as gcr.io/my-project/checkpoints",
            field=".checkpointImageRepo",
        ),
    )

    checkpoint_image_repo: Annotated[
        str,
        Meta(
            description="Repository that the images of container checkpoints are pushed to, such as "
            "gcr.io/my-project/checkpoints. A replica that starts anew runs the newest of them.",
            min_length=1,
            max_length=512,
        ),
    ]
    checkpoint_interval: Annotated[
        str,
        Meta(
            description='Time between two checkpoints, such as "30m" or "1h30m". May be changed at any time.',
            max_length=16,
        ),
    ]
    checkpoint_repo_credential_ref: Annotated[
        ObjectReference | None,
        Meta(description="Secret of type kubernetes.io/dockerconfigjson with the credentials of the repository."),
    ] = None
    checkpoint_storage: Annotated[
        SpotCheckpointStore | None, Meta(description="Where the training keeps checkpoints of its own, if it does.")
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
            "description": "Never (default) or OnFailure, as a Job demands.",
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


_JOB_TEMPLATE = _object(
    "Template of the Job that every replica runs, as in a CronJob.",
    spec=_object("Specification of the Job.", template=_object("Template of its pod.", spec=_POD_SPEC)),
)


class SpotInstanceJobSpec(ApiStruct, frozen=True, kw_only=True):
    replicas: Annotated[
        int,
        Meta(
            description="Redundant copies of the training; 2 by default. The job succeeds when the first copy "
            "succeeds, and the others are then stopped. May be changed at any time.",
            ge=1,
            le=32,
        ),
    ] = 2
    job_template: Annotated[
        dict[str, Any],
        Meta(
            description="Template of the Job that every replica runs, as in a CronJob (batch/v1 JobTemplateSpec).",
            extra_json_schema=_JOB_TEMPLATE,
        ),
    ]
    checkpoint_config: Annotated[CheckpointConfig, Meta(description="How and how often replicas are checkpointed.")]
    spot_instance_vm_ref: Annotated[
        LocalObjectReference, Meta(description="The SpotInstanceVM that new machines are made from.")
    ] = field(name="spotInstanceVMRef")
    gcp_credentials_secret_ref: Annotated[
        ObjectReference,
        Meta(description="Secret whose key credentials.json holds the service account that makes machines."),
    ]


class ReplicaStatus(ApiStruct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(description="Name of the replica's Job.", max_length=253)]
    node_name: Annotated[str, Meta(description="Node that it runs on.", max_length=253)] | None = None
    phase: Annotated[str, Meta(description="Where the replica stands.", max_length=64)] | None = None
    last_checkpoint_image: Annotated[str, Meta(description="Its newest checkpoint image.", max_length=1024)] | None = (
        None
    )


class SpotInstanceJobStatus(ApiStruct, frozen=True, kw_only=True):
    observed_generation: ObservedGeneration = 0
    conditions: Annotated[
        Conditions, Meta(description="Running, Restarting, Succeeded and Failed, for kubectl wait.")
    ] = ()
    active_replicas: Annotated[Count, Meta(description="Replicas that run.")] = 0
    last_checkpoint_time: Annotated[Timestamp, Meta(description="When the newest checkpoint was taken.")] | None = None
    last_checkpoint_image: (
        Annotated[str, Meta(description="The newest checkpoint image of any replica.", max_length=1024)] | None
    ) = None
    job_statuses: Annotated[
        tuple[ReplicaStatus, ...],
        Meta(
            description="The replicas, one by one.",
            max_length=64,
            extra_json_schema=list_map_keys("name"),
        ),
    ] = ()


class SpotInstanceJob(Object, frozen=True, kw_only=True):
    """Redundant copies of one training on spot machines, checkpointed as whole containers."""

    RULES: ClassVar = (
        NAME_WITH_ROOM_FOR_SUFFIXES,
        *immutable_while(
            (".spec.jobTemplate", ".spec.checkpointConfig.checkpointImageRepo", ".spec.spotInstanceVMRef"),
            while_="has(self.status) && has(self.status.jobStatuses) && size(self.status.jobStatuses) > 0",
            message="can't change once replicas were started, since they would no longer be copies of one training: "
            "create a new job",
        ),
    )

    spec: Annotated[SpotInstanceJobSpec, Meta(description="What to run, on which machines, and how to save it.")]
    status: Annotated[
        SpotInstanceJobStatus | None, Meta(description="What the operator has found. Written by the operator alone.")
    ] = None


_SUCCEEDED = '.status.conditions[?(@.type=="Succeeded")].status'

KIND = Kind(
    group="training.training.dcnlab.com",
    versions=("v1alpha1",),
    kind="SpotInstanceJob",
    plural="spotinstancejobs",
    short_name="sij",
    model=SpotInstanceJob,
    columns=(
        PrinterColumn(name="REPLICAS", path=".spec.replicas", type="integer", description="Copies wished for."),
        PrinterColumn(name="ACTIVE", path=".status.activeReplicas", type="integer", description="Copies that run."),
        PrinterColumn(name="SUCCEEDED", path=_SUCCEEDED, description="Whether a copy has finished."),
        PrinterColumn(
            name="LAST-CHECKPOINT", path=".status.lastCheckpointTime", type="date", description="Since the newest one."
        ),
        AGE,
        PrinterColumn(
            name="VM", path=".spec.spotInstanceVMRef.name", wide=True, description="Template of the machines."
        ),
        PrinterColumn(
            name="IMAGE", path=".status.lastCheckpointImage", wide=True, description="The newest checkpoint image."
        ),
    ),
)
