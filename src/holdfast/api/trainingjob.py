"""TrainingJob: a distributed training that finishes, whatever happens to its machines."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from holdfast.api.checkpoint import Checkpoint, CheckpointStorage
from holdfast.api.core.pod import EnvVarField, ResourceRequirementsField, reserved_env_rule
from holdfast.api.kind import AGE, Kind, PrinterColumn, Scale
from holdfast.api.meta import ApiStruct, Object
from holdfast.api.scalars import Argument, Image, PositiveSeconds, Seconds, list_map_keys
from holdfast.api.schema.rules import (
    SHORT_NAME,
    Reason,
    Rule,
    immutable_while,
    suspend_immutable_while,
)
from holdfast.api.trainingjob_blocks import (
    FailurePolicy,
    Hyperparameters,
    Monitoring,
    Networking,
    PodTemplate,
    Scheduling,
    SuccessPolicy,
)
from holdfast.api.trainingjob_status import (
    AllocatedResources,
    CheckpointStatus,
    EpochProgress,
    RestartCounts,
    State,
    TrainingJobStatus,
    WorkerCounts,
)

__all__ = [
    "KIND",
    "AllocatedResources",
    "Checkpoint",
    "CheckpointStatus",
    "CheckpointStorage",
    "EpochProgress",
    "FailurePolicy",
    "Hyperparameters",
    "Monitoring",
    "Networking",
    "PodTemplate",
    "RestartCounts",
    "Scheduling",
    "State",
    "SuccessPolicy",
    "TrainingJob",
    "TrainingJobSpec",
    "TrainingJobStatus",
    "WorkerCounts",
]


# gpusPerWorker is left to the operator: what counts is the field, else nvidia.com/gpu of limits or requests, else 1.
_GPUS_OF = "has(self.resources) && has(self.resources.{side}) && 'nvidia.com/gpu' in self.resources.{side}"
_LIMIT, _REQUEST = _GPUS_OF.format(side="limits"), _GPUS_OF.format(side="requests")
_NO_GPU = (
    "(has(self.gpusPerWorker) ? self.gpusPerWorker == 0 : "
    f"{_LIMIT} ? string(self.resources.limits['nvidia.com/gpu']) == '0' : "
    f"{_REQUEST} ? string(self.resources.requests['nvidia.com/gpu']) == '0' : false)"
)
_MONITORING_OFF = "has(self.monitoring) && has(self.monitoring.enabled) && !self.monitoring.enabled"


def _agrees_with_gpus(side: str) -> Rule:
    return Rule(
        rule=f"!(has(self.gpusPerWorker) && {_GPUS_OF.format(side=side)}) || "
        f"string(self.resources.{side}['nvidia.com/gpu']) == string(self.gpusPerWorker)",
        message=f"gpusPerWorker and nvidia.com/gpu in resources.{side} name different numbers: write the same number, "
        "or only one of them",
        field=".gpusPerWorker",
    )


def _not_the_sidecars(block: str, port: str) -> Rule:
    return Rule(
        rule=f"!has(self.{block}) || !has(self.{block}.{port}) || !(self.{block}.{port} in [8470, 8471])",
        message="ports 8470 and 8471 are those of the operator's sidecar: choose another",
        field=f".{block}.{port}",
        reason=Reason.FORBIDDEN,
    )


class TrainingJobSpec(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        _agrees_with_gpus("limits"),
        _agrees_with_gpus("requests"),
        Rule(
            rule=f"!(has(self.networking) && has(self.networking.backend) && self.networking.backend == 'nccl' && "
            f"{_NO_GPU})",
            message="nccl needs GPUs and this job has none: write backend: gloo, or give gpusPerWorker a "
            "number above 0",
            field=".networking.backend",
        ),
        Rule(
            rule="!has(self.monitoring) || !has(self.monitoring.tensorboardEnabled) || "
            "!self.monitoring.tensorboardEnabled || "
            "(has(self.checkpoint) && (!has(self.checkpoint.enabled) || self.checkpoint.enabled))",
            message="TensorBoard reads a folder beside the checkpoints: add a checkpoint block, or remove "
            "tensorboardEnabled",
            field=".monitoring.tensorboardEnabled",
        ),
        Rule(
            rule="(has(self.networking) && has(self.networking.masterPort) ? self.networking.masterPort : 29500) != "
            "(has(self.monitoring) && has(self.monitoring.metricsPort) ? self.monitoring.metricsPort : 8080)",
            message="masterPort (29500 by default) and metricsPort (8080 by default) are the same: choose two ports",
            field=".networking.masterPort",
        ),
        Rule(
            rule=f"!has(self.successPolicy) || !({_MONITORING_OFF})",
            message="successPolicy acts on the metrics that monitoring collects: remove monitoring.enabled: false, or "
            "remove successPolicy",
            field=".successPolicy",
            reason=Reason.FORBIDDEN,
        ),
        Rule(
            rule=f"!has(self.progressDeadlineSeconds) || !({_MONITORING_OFF})",
            message="progressDeadlineSeconds acts on the progress that monitoring collects: remove monitoring.enabled: "
            "false, or remove progressDeadlineSeconds",
            field=".progressDeadlineSeconds",
            reason=Reason.FORBIDDEN,
        ),
        Rule(
            rule="!has(self.checkpoint) || (has(self.checkpoint.enabled) && !self.checkpoint.enabled) || "
            "!has(self.podTemplate) || !has(self.podTemplate.volumeMounts) || "
            "self.podTemplate.volumeMounts.all(mount, !mount.mountPath.matches('^/+checkpoints(/|$)'))",
            message="/checkpoints is where the checkpoint volume is mounted: mount yours elsewhere, or use it through "
            "checkpoint.storage.pvcName",
            field=".podTemplate.volumeMounts",
            reason=Reason.FORBIDDEN,
        ),
        Rule(
            rule="!has(self.checkpoint) || !has(self.checkpoint.resumeFrom) || "
            "self.checkpoint.resumeFrom.contains('://') || !has(self.checkpoint.storage) || "
            "self.checkpoint.storage.type in ['pvc', 'nfs'] || "
            "(has(self.podTemplate) && has(self.podTemplate.volumeMounts) && "
            "self.podTemplate.volumeMounts.exists(mount, (self.checkpoint.resumeFrom + '/').startsWith("
            "mount.mountPath.endsWith('/') ? mount.mountPath : mount.mountPath + '/')))",
            message="checkpoints in an object store have no volume with such a path: write s3://bucket/path, "
            "gs://bucket/path or az://container/path, or mount the volume that holds it with podTemplate",
            field=".checkpoint.resumeFrom",
        ),
        _not_the_sidecars("networking", "masterPort"),
        _not_the_sidecars("monitoring", "metricsPort"),
        reserved_env_rule(but="HOLDFAST_METRIC_NAMES"),
    )

    model: Annotated[
        str,
        Meta(
            description="What is trained: a name for your script, given to it as MODEL. With neither image nor "
            "command, a model of the reference trainer: linear, mlp or cnn.",
            min_length=1,
            max_length=253,
        ),
    ]
    dataset: Annotated[
        str,
        Meta(
            description="What it is trained on, given as DATASET. With neither image nor command, a data set of the "
            "reference trainer: digits, synthetic, or mnist from a mounted folder.",
            min_length=1,
            max_length=253,
        ),
    ]
    num_workers: Annotated[
        int,
        Meta(
            description="How many workers train together, 1 to 100. Changed while the job runs (kubectl scale works "
            "too), it makes a new attempt of that size from the last checkpoint.",
            ge=1,
            le=100,
        ),
    ]
    gpus_per_worker: (
        Annotated[
            int,
            Meta(
                description="GPUs of each worker. Without it, nvidia.com/gpu of resources; without both, 1. "
                "0 trains on CPUs.",
                ge=0,
                le=64,
            ),
        ]
        | None
    ) = None
    framework: Annotated[
        Literal["pytorch", "tensorflow", "jax"],
        Meta(
            description="Whose variables tell the workers about each other. pytorch (default): MASTER_ADDR, "
            "MASTER_PORT, WORLD_SIZE, RANK and PET_* for torchrun. tensorflow: TF_CONFIG. jax: "
            "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID."
        ),
    ] = "pytorch"
    image: (
        Annotated[
            Image,
            Meta(
                description="Container image with the training. Without it, the default image that the operator is "
                "configured with for the framework."
            ),
        ]
        | None
    ) = None
    command: Annotated[
        tuple[Argument, ...],
        Meta(description="What to run, instead of the image's own entry point.", max_length=64),
    ] = ()
    args: Annotated[tuple[Argument, ...], Meta(description="Arguments of the command.", max_length=256)] = ()
    env: Annotated[
        tuple[EnvVarField, ...],
        Meta(
            description="Further environment variables. One that the operator sets too is replaced by yours. "
            "HOLDFAST_METRIC_NAMES, such as loss=my_loss,accuracy=top1, says which metrics of metricsPort hold what.",
            max_length=256,
            extra_json_schema=list_map_keys("name"),
        ),
    ] = ()
    resources: Annotated[
        ResourceRequirementsField | None,
        Meta(description="CPU, memory and other resources of each worker. GPUs are added from gpusPerWorker."),
    ] = None
    hyperparameters: Annotated[
        Hyperparameters | None,
        Meta(description="Settings of the training, given as environment variables and in the file CONFIG_FILE."),
    ] = None
    checkpoint: Annotated[
        Checkpoint | None,
        Meta(
            description="How the training is saved, so that it goes on after a loss instead of starting anew. Your "
            "script writes to CHECKPOINT_DIR, and goes on from RESUME_FROM if that path exists; the rest is done for "
            "it. Without this block nothing is kept."
        ),
    ] = None
    scheduling: Annotated[Scheduling | None, Meta(description="Where workers run, and who goes first.")] = None
    monitoring: Annotated[Monitoring | None, Meta(description="How the training is watched.")] = None
    networking: Annotated[Networking | None, Meta(description="How workers talk to each other.")] = None
    failure_policy: Annotated[FailurePolicy | None, Meta(description="What happens when the training fails.")] = None
    success_policy: Annotated[
        SuccessPolicy | None, Meta(description="When the training is good enough to stop early.")
    ] = None
    suspend: Annotated[
        bool,
        Meta(
            description="true stops the workers after they had a chance to save; false goes on from the last "
            "checkpoint. While the job is Suspended, most other fields may be changed."
        ),
    ] = False
    ttl_seconds_after_finished: (
        Annotated[
            Seconds,
            Meta(
                description="Delete the job so long after it ended; never without it. Checkpoints stay. May be changed "
                "at any time."
            ),
        ]
        | None
    ) = None
    progress_deadline_seconds: (
        Annotated[
            PositiveSeconds,
            Meta(
                description="A job that reports no progress for so long hangs, and is started anew from the last "
                "checkpoint. Without it a hang is not looked for. Added to a suspended job that has nobody to watch "
                "its progress (neither checkpoint nor monitoring), it makes a new attempt; so does successPolicy.",
            ),
        ]
        | None
    ) = None
    pod_template: Annotated[
        PodTemplate | None,
        Meta(description="What is laid over the workers' pods: volumes, service account, security and the like."),
    ] = None


_STATE = "has(self.status) && has(self.status.state)"
_UNDER_WAY = f"{_STATE} && !(self.status.state in ['Pending', 'Suspended'])"
_ENDED = f"{_STATE} && self.status.state in ['Completed', 'Failed']"
_HAS_RUN = (
    f"{_STATE} && self.status.state != 'Pending' && (self.status.state != 'Suspended' || has(self.status.startTime))"
)

_WHILE_SUSPENDED = immutable_while(
    (
        ".spec.gpusPerWorker",
        ".spec.image",
        ".spec.command",
        ".spec.args",
        ".spec.env",
        ".spec.resources",
        ".spec.hyperparameters",
        ".spec.checkpoint.enabled",
        ".spec.checkpoint.frequency",
        ".spec.checkpoint.interval",
        ".spec.scheduling",
        ".spec.monitoring",
        ".spec.networking",
        ".spec.successPolicy",
        ".spec.progressDeadlineSeconds",
        ".spec.podTemplate",
    ),
    while_=_UNDER_WAY,
    message="can't change while the training runs: set spec.suspend: true, wait for state Suspended, change it and set "
    "spec.suspend: false. A job that has ended can't change at all: delete it first, or create a new job",
)
_NEVER_AGAIN = immutable_while(
    (".spec.model", ".spec.dataset", ".spec.framework", ".spec.checkpoint.storage", ".spec.checkpoint.resumeFrom"),
    while_=_HAS_RUN,
    message="can't change once the training has run, since its checkpoints would no longer fit: create a new job, with "
    "checkpoint.resumeFrom if it should go on from this one",
)
_TOO_LATE = "the job has ended, so this would change nothing: delete it first, or create a new job"
_UNTIL_THE_END = (
    *immutable_while((".spec.numWorkers",), while_=_ENDED, message=_TOO_LATE),
    suspend_immutable_while(while_=_ENDED, message=_TOO_LATE),
)
_RESTART_POLICY = Rule(
    rule=f"!({_UNDER_WAY}) || "
    "(has(self.spec.failurePolicy) ? self.spec.failurePolicy.restartPolicy : 'OnFailure') == "
    "(has(oldSelf.spec.failurePolicy) ? oldSelf.spec.failurePolicy.restartPolicy : 'OnFailure')",
    message=_WHILE_SUSPENDED[0].message,
    field=".spec.failurePolicy.restartPolicy",
    reason=Reason.FORBIDDEN,
)


class TrainingJob(Object, frozen=True, kw_only=True):
    """A distributed training: workers that find each other, save what they have learned, and go on after a loss."""

    RULES: ClassVar = (SHORT_NAME, *_NEVER_AGAIN, *_WHILE_SUSPENDED, _RESTART_POLICY, *_UNTIL_THE_END)

    spec: Annotated[TrainingJobSpec, Meta(description="What to train, with what, and how to keep it.")]
    status: Annotated[
        TrainingJobStatus | None, Meta(description="What the operator has found. Written by the operator alone.")
    ] = None


KIND = Kind(
    group="ml.example.com",
    versions=("v1",),
    kind="TrainingJob",
    plural="trainingjobs",
    short_name="tj",
    model=TrainingJob,
    columns=(
        PrinterColumn(name="STATE", path=".status.state", description="Where the job stands."),
        PrinterColumn(name="PROGRESS", path=".status.progress", description="How far the training is."),
        PrinterColumn(name="EPOCH", path=".status.currentEpoch", type="integer", description="The current epoch."),
        AGE,
        PrinterColumn(
            name="WORKERS", path=".spec.numWorkers", type="integer", wide=True, description="Workers wished for."
        ),
        PrinterColumn(
            name="ACTIVE", path=".status.workers.active", type="integer", wide=True, description="Workers there."
        ),
        PrinterColumn(name="GPUS", path=".status.resources.gpus", type="integer", wide=True, description="GPUs held."),
        PrinterColumn(
            name="RESTARTS", path=".status.restartCount", type="integer", wide=True, description="New attempts."
        ),
        PrinterColumn(
            name="LOSS", path=".status.metrics.loss", type="number", wide=True, description="Last reported loss."
        ),
        PrinterColumn(
            name="DURATION", path=".status.duration", wide=True, description="From start to end, or until now."
        ),
        PrinterColumn(name="MESSAGE", path=".status.message", wide=True, description="What the job waits for."),
    ),
    scale=Scale(
        spec_replicas_path=".spec.numWorkers",
        status_replicas_path=".status.workers.active",
        label_selector_path=".status.selector",
    ),
)
