"""The blocks of a TrainingJob's spec that stand for themselves."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from holdfast.api.core.pod import LocalObjectReference, PodSecurityContext, VolumeMountField
from holdfast.api.core.scheduling import AffinityField, TolerationField, TopologySpreadConstraintField
from holdfast.api.core.volumes import VolumeField
from holdfast.api.meta import ApiStruct
from holdfast.api.scalars import Count, DnsSubdomain, Labels, Port, PositiveSeconds, Seconds, list_map_keys
from holdfast.api.schema.rules import Reason, Rule, label_keys_rule


class Hyperparameters(ApiStruct, frozen=True, kw_only=True):
    learning_rate: (
        Annotated[float, Meta(description="Learning rate. Given to the training as LEARNING_RATE.", gt=0)] | None
    ) = None
    batch_size: Annotated[int, Meta(description="Samples in a batch. BATCH_SIZE.", ge=1)] | None = None
    epochs: (
        Annotated[
            int,
            Meta(description="How often the data set is gone through; progress is measured by it. EPOCHS.", ge=1),
        ]
        | None
    ) = None
    optimizer: Annotated[
        Literal["adam", "sgd", "adamw", "rmsprop"] | None, Meta(description="The optimizer. OPTIMIZER.")
    ] = None
    warmup_steps: (
        Annotated[Count, Meta(description="Steps in which the learning rate rises to its value. WARMUP_STEPS.")] | None
    ) = None
    gradient_accumulation_steps: (
        Annotated[
            int,
            Meta(
                description="Batches whose gradients are added up before a step. GRADIENT_ACCUMULATION_STEPS.",
                ge=1,
            ),
        ]
        | None
    ) = None
    mixed_precision: (
        Annotated[bool, Meta(description="Whether to compute in half precision where that is safe. MIXED_PRECISION.")]
        | None
    ) = None
    additional_params: Annotated[
        dict[str, Annotated[str, Meta(max_length=4096)]],
        Meta(
            description="Anything else, as strings (quote numbers). Each becomes PARAM_ and its name in upper case: "
            "weight_decay is given as PARAM_WEIGHT_DECAY.",
            max_length=64,
        ),
    ] = {}


class Scheduling(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (label_keys_rule("nodeSelector"),)

    priority: (
        Annotated[
            DnsSubdomain,
            Meta(description="Name of a PriorityClass. Jobs of higher priority are admitted first."),
        ]
        | None
    ) = None
    node_selector: Annotated[Labels, Meta(description="Labels that a node must have.")] = {}
    affinity: Annotated[AffinityField | None, Meta(description="Nodes and neighbours that workers need or prefer.")] = (
        None
    )
    tolerations: (
        Annotated[
            tuple[TolerationField, ...],
            Meta(
                description="Taints that workers put up with. Without it, nvidia.com/gpu with any value if the workers "
                "have GPUs; an empty list means none.",
                max_length=32,
            ),
        ]
        | None
    ) = None


class Monitoring(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="!has(self.tensorboardEnabled) || !self.tensorboardEnabled || !has(self.enabled) || self.enabled",
            message="TensorBoard is part of monitoring: remove monitoring.enabled: false, or remove tensorboardEnabled",
            field=".tensorboardEnabled",
        ),
    )

    enabled: Annotated[
        bool,
        Meta(
            description="Whether the training is monitored: a metrics port, scrape annotations, TensorBoard. True as "
            "soon as this block is written. Progress is collected without this block, too; false leaves the sidecar "
            "that collects it out, unless checkpoint, successPolicy or progressDeadlineSeconds need the sidecar."
        ),
    ] = True
    metrics_port: Annotated[
        Port,
        Meta(
            description="Port on which the training may serve Prometheus text; 8080 by default. It is opened on the "
            "pods and the {name}-master Service, and annotations on the pods tell Prometheus of it."
        ),
    ] = 8080
    tensorboard_enabled: Annotated[
        bool,
        Meta(
            description="Whether a TensorBoard named {name}-tensorboard runs beside the job, on the folder "
            "tensorboard/ beside the checkpoints, which the training is given as TENSORBOARD_DIR. Needs a checkpoint "
            "block."
        ),
    ] = False
    mlflow_tracking_uri: (
        Annotated[str, Meta(description="Address of the MLflow server. MLFLOW_TRACKING_URI.", max_length=2048)] | None
    ) = None
    wandb_project: (
        Annotated[str, Meta(description="Project at Weights & Biases. WANDB_PROJECT.", max_length=128)] | None
    ) = None


class Networking(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="!has(self.backend) || self.backend in ['nccl', 'gloo']",
            message="write nccl (between GPUs) or gloo (between CPUs, or where NCCL is not at hand); mpi is not "
            "supported, since it brings a launcher of its own: nccl or gloo serve the same collectives",
            field=".backend",
        ),
        Rule(
            rule="!has(self.rdmaEnabled) || !self.rdmaEnabled || !has(self.backend) || self.backend == 'nccl'",
            message="RDMA is used by nccl only: write backend: nccl, or remove rdmaEnabled",
            field=".rdmaEnabled",
        ),
    )

    # A rule and not an enum: the server would list the values of an enum, and not say what to do about mpi.
    backend: (
        Annotated[
            str,
            Meta(
                description="How workers exchange gradients: nccl between GPUs, gloo between CPUs. Without it, nccl "
                "where there are GPUs, else gloo.",
                max_length=16,
            ),
        ]
        | None
    ) = None
    master_port: Annotated[
        Port, Meta(description="Port of worker 0 at which all workers meet; 29500 by default. MASTER_PORT.")
    ] = 29500
    rdma_enabled: Annotated[
        bool,
        Meta(
            description="Whether workers get an RDMA device (the resource that the operator is configured with, or "
            "the number of it in resources) and may lock memory for it (IPC_LOCK), an exception to the restricted pod "
            "security level. Without it nccl does not look for one: NCCL_IB_DISABLE is 1."
        ),
    ] = False


class FailurePolicy(ApiStruct, frozen=True, kw_only=True):
    restart_policy: Annotated[
        Literal["OnFailure", "Always", "Never", "ExitCode"],
        Meta(
            description="What happens after a failure of the training itself. OnFailure (default): a new attempt from "
            "the last checkpoint. Always means the same. Never: the job fails. ExitCode: exit codes 1 to 127 are "
            "final, 128 and above are tried again. After a preemption or a lost node the job always goes on."
        ),
    ] = "OnFailure"
    backoff_limit: Annotated[
        Count,
        Meta(
            description="How many failures of the training itself are followed by a new attempt; 3 by default. "
            "Preemptions and lost nodes are not counted. May be changed at any time."
        ),
    ] = 3
    active_deadline_seconds: (
        Annotated[
            PositiveSeconds,
            Meta(
                description="How long the job may run, over all attempts and without the time that it was suspended. "
                "May be changed at any time.",
            ),
        ]
        | None
    ) = None


class SuccessPolicy(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="has(self.targetAccuracy) || has(self.earlyStoppingPatience)",
            message="write targetAccuracy, earlyStoppingPatience or both, or remove successPolicy",
        ),
    )

    target_accuracy: (
        Annotated[
            float,
            Meta(description="The job completes when the reported accuracy reaches this, 0 to 1.", ge=0, le=1),
        ]
        | None
    ) = None
    early_stopping_patience: (
        Annotated[int, Meta(description="The job completes after so many epochs without a better loss.", ge=1)] | None
    ) = None


# What a user may lay over the pods that holdfast builds: these fields, with all that they can say.


class PodTemplate(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="!has(self.volumeMounts) || self.volumeMounts.all(mount, "
            "has(self.volumes) && self.volumes.exists(volume, volume.name == mount.name))",
            message="every mount names a volume of podTemplate.volumes: add the volume, or correct the name",
            field=".volumeMounts",
        ),
        Rule(
            rule="!has(self.volumes) || self.volumes.all(volume, !volume.name.startsWith('holdfast-'))",
            message="names of volumes that start with holdfast- are the operator's own: choose another",
            field=".volumes",
            reason=Reason.FORBIDDEN,
        ),
        Rule(
            rule="!has(self.volumeMounts) || self.volumeMounts.all(mount, "
            "!mount.mountPath.matches('^/+(etc/+)?holdfast(-[a-z]+)?(/|$)'))",
            message="/holdfast, /etc/holdfast and the like are the operator's own folders: mount the volume elsewhere",
            field=".volumeMounts",
            reason=Reason.FORBIDDEN,
        ),
        label_keys_rule("labels"),
        label_keys_rule("annotations"),
        Rule(
            rule="!has(self.labels) || self.labels.all(key, !(key in ['training-job', 'trainingjob']) && "
            "!key.startsWith('holdfast.dev/') && !key.startsWith('batch.kubernetes.io/'))",
            message="training-job, trainingjob, holdfast.dev/… and batch.kubernetes.io/… are set by the operator: "
            "choose other labels",
            field=".labels",
            reason=Reason.FORBIDDEN,
        ),
    )

    volumes: Annotated[
        tuple[VolumeField, ...],
        Meta(
            description="Further volumes of every worker, such as data sets.",
            max_length=32,
            extra_json_schema=list_map_keys("name"),
        ),
    ] = ()
    volume_mounts: Annotated[
        tuple[VolumeMountField, ...],
        Meta(
            description="Where the training container sees them. One at /dev/shm takes the place of the "
            "operator's shared memory volume.",
            max_length=32,
            extra_json_schema=list_map_keys("mountPath"),
        ),
    ] = ()
    image_pull_secrets: Annotated[
        tuple[LocalObjectReference, ...],
        Meta(
            description="Secrets with the credentials of private registries.",
            max_length=16,
            extra_json_schema=list_map_keys("name"),
        ),
    ] = ()
    image_pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"] | None,
        Meta(description="When the image is pulled again. Kubernetes' default: Always for the tag latest, else once."),
    ] = None
    service_account_name: Annotated[
        DnsSubdomain,
        Meta(
            description="Service account of the pods, for workload identity. Without it the operator makes one with "
            "the job's name. Either way no API token is mounted by itself; a projected volume of yours can mount one. "
            "The operator may forbid to name one."
        ),
    ] = ""
    annotations: Annotated[
        dict[str, Annotated[str, Meta(max_length=65536)]],
        Meta(description="Further annotations of the pods.", max_length=64),
    ] = {}
    labels: Annotated[Labels, Meta(description="Further labels of the pods.")] = {}
    runtime_class_name: Annotated[DnsSubdomain, Meta(description="The RuntimeClass, such as nvidia.")] = ""
    host_network: Annotated[
        bool,
        Meta(
            description="Whether the pods use the node's network, as some RDMA set-ups need. Two workers on one node "
            "then compete for masterPort and metricsPort, and the sidecar's ports 8470 and 8471 keep two workers with "
            "sidecars off one node. The namespace's pod security level, or the operator, may forbid it."
        ),
    ] = False
    topology_spread_constraints: Annotated[
        tuple[TopologySpreadConstraintField, ...],
        Meta(
            description="How workers are spread over zones or nodes.",
            max_length=16,
            extra_json_schema=list_map_keys("topologyKey", "whenUnsatisfiable"),
        ),
    ] = ()
    security_context: Annotated[
        PodSecurityContext | None,
        Meta(
            description="As whom the pods run. Fields written here replace those of the operator's default: user, "
            "group and fsGroup 1000 (set on a volume whose root differs), not root, the runtime's seccomp profile. "
            "The namespace's pod security level, or the operator, may forbid root."
        ),
    ] = None
    termination_grace_period_seconds: (
        Annotated[
            Seconds,
            Meta(
                description="How long a worker that is stopped may take to save. A part of it is kept back for the "
                "upload of the last checkpoint. Without it 30, with checkpoints on a volume 90 and in an object store "
                "600; a worker that is done ends earlier."
            ),
        ]
        | None
    ) = None
