"""CheckpointBackup: images of a running pod's containers, once or on a schedule."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from holdfast.api.core.pod import ObjectReference
from holdfast.api.kind import AGE, Kind, PrinterColumn
from holdfast.api.meta import ApiStruct, Condition, Conditions, Object, ObservedGeneration
from holdfast.api.scalars import Count, DnsLabel, DnsSubdomain, Image, Timestamp, list_map_keys
from holdfast.api.schema.rules import Rule, immutable_while

Phase = Literal[
    "Checkpointing",
    "Checkpointed",
    "ImageBuilding",
    "ImageBuilt",
    "ImagePushing",
    "ImagePushed",
    "Completed",
    "CompletedPodDeleted",
    "CompletedWithError",
    "Failed",
]
TERMINAL_PHASES: frozenset[Phase] = frozenset({"Completed", "CompletedPodDeleted", "CompletedWithError", "Failed"})
SUCCESSFUL_PHASES: frozenset[Phase] = frozenset({"Completed", "CompletedPodDeleted"})

# How the state of a run is saved: frozen by the container runtime, or by the training itself through the sidecar.
RunMode = Literal["container", "application"]

# The node whose agent carries out the current run: agents watch only the objects with their own node's label.
NODE_LABEL = "holdfast.dev/node"
IMMEDIATELY = "immediately"


def _cron_field(value: str) -> str:
    """A list of values, ranges and steps, where one value looks like `value`."""
    part = rf"([*]|({value})(-({value}))?)(/[1-9][0-9]?)?"
    return rf"{part}(,{part})*"


CRON = " +".join(
    _cron_field(value)
    for value in (
        "[0-5]?[0-9]",
        "[01]?[0-9]|2[0-3]",
        "0?[1-9]|[12][0-9]|3[01]",
        "0?[1-9]|1[0-2]|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec",
        "[0-7]|sun|mon|tue|wed|thu|fri|sat",
    )
)
NAMED_SCHEDULES = ("yearly", "annually", "monthly", "weekly", "daily", "midnight", "hourly")
_SCHEDULE = f"^({IMMEDIATELY}|@({'|'.join(NAMED_SCHEDULES)})|(?i:{CRON}))$"


class ResourceReference(ApiStruct, frozen=True, kw_only=True):
    api_version: Annotated[
        str, Meta(description="Its group and version, such as batch/v1.", min_length=1, max_length=317)
    ]
    kind: Annotated[str, Meta(description="Its kind, such as Job.", min_length=1, max_length=63)]
    name: Annotated[DnsSubdomain, Meta(description="Its name.")]
    namespace: Annotated[DnsLabel, Meta(description="Its namespace; without it, the backup's own.")] | None = None


class Registry(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="self.url.matches('^(https?://)?[^/ ]+/?$')",
            message="write the registry's host, such as gcr.io or registry.example.com:5000; the path belongs "
            "in repository",
            field=".url",
        ),
        Rule(
            rule="self.repository.matches('^[a-z0-9]+([._/-]+[a-z0-9]+)*$')",
            message="write the repository in lower case, without host and tag, such as my-project/checkpoints",
            field=".repository",
        ),
    )

    url: Annotated[str, Meta(description="Host of the registry, such as gcr.io.", min_length=1, max_length=512)]
    repository: Annotated[str, Meta(description="Repository that images are pushed to.", min_length=1, max_length=255)]
    secret_ref: Annotated[
        ObjectReference | None,
        Meta(
            description="Secret with the registry's credentials: of type kubernetes.io/dockerconfigjson, or with the "
            "keys username and password; ca.crt beside them is the authority of the registry's certificate. A Secret "
            "of another namespace must list the backup's in its annotation holdfast.dev/allow-namespaces."
        ),
    ] = None


class ContainerImage(ApiStruct, frozen=True, kw_only=True):
    name: Annotated[DnsLabel, Meta(description="The container.")]
    image: (
        Annotated[
            Image,
            Meta(
                description="Repository or image on the host of registry.url that it is pushed to; without it, "
                "registry.repository with a tag of backup, container, run and time."
            ),
        ]
        | None
    ) = None


class CheckpointBackupSpec(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule=f"self.schedule.matches(r'{_SCHEDULE}')",
            message='write "immediately" for one checkpoint now, @hourly, @daily, @weekly, @monthly or @yearly, or a '
            'cron expression of five fields such as "*/30 * * * *" (minute 0-59, hour 0-23, day of month 1-31, '
            "month 1-12, day of week 0-7)",
            field=".schedule",
        ),
        Rule(
            rule="!has(self.containers) || self.containers.all(c, !has(c.image) || ['', 'https://', 'http://']"
            ".exists(s, (s + c.image).startsWith(self.registry.url.endsWith('/') ? self.registry.url : "
            "self.registry.url + '/')))",
            message="write images on the host of registry.url, such as registry.example.com:5000/checkpoints/trainer: "
            "its credential goes to no other host",
            field=".containers",
        ),
    )

    schedule: Annotated[
        str,
        Meta(
            description='When to take a checkpoint: "immediately", once, or a cron expression of five fields '
            '("*/30 * * * *") or @hourly and the like.',
            min_length=1,
            max_length=128,
        ),
    ]
    stop_pod: Annotated[
        bool, Meta(description="Whether the pod is deleted once its images are pushed, as for a migration.")
    ] = False
    pod_ref: Annotated[ObjectReference, Meta(description="The pod to checkpoint.")]
    resource_ref: Annotated[
        ResourceReference | None, Meta(description="The object that the pod belongs to, for the record.")
    ] = None
    registry: Annotated[Registry, Meta(description="Where images are pushed to.")]
    containers: Annotated[
        tuple[ContainerImage, ...],
        Meta(
            description="The containers to checkpoint; without it, every container of the pod.",
            max_length=32,
            extra_json_schema=list_map_keys("name"),
        ),
    ] = ()
    mode: Annotated[
        Literal["auto", "container", "application"],
        Meta(
            description="container: the runtime freezes the containers with CRIU. application: the training saves by "
            "itself, through holdfast's sidecar. auto: application where the pod has the sidecar, else container."
        ),
    ] = "auto"
    time_zone: (
        Annotated[str, Meta(description="Zone of the schedule, such as Europe/Berlin; without it, UTC.", max_length=64)]
        | None
    ) = None
    suspend: Annotated[bool, Meta(description="Whether no new run is begun; one under way goes on.")] = False
    timeout_seconds: Annotated[
        int, Meta(description="Seconds that a run may take, from its start to the last image.", ge=10, le=86400)
    ] = 600
    retain: Annotated[
        int,
        Meta(description="How many runs keep their images; older ones are deleted. 0 keeps all.", ge=0, le=1000),
    ] = 3
    compression: Annotated[
        Literal["none", "zstd"],
        Meta(
            description="How images are compressed. Memory that hardly shrinks is left as it is, whatever is written."
        ),
    ] = "none"


class BuiltImage(ApiStruct, frozen=True, kw_only=True):
    container_name: Annotated[str, Meta(description="The container.", max_length=63)]
    image_name: Annotated[str, Meta(description="Its image, as a pod can name it.", max_length=1024)]
    digest: Annotated[str, Meta(description="Digest of its manifest: sha256:….", max_length=160)] = ""


class CheckpointBackupStatus(ApiStruct, frozen=True, kw_only=True):
    observed_generation: ObservedGeneration = 0
    phase: Annotated[Phase | None, Meta(description="How far the current or last checkpoint is.")] = None
    run: Annotated[Count, Meta(description="Number of the current or last run. It only grows.")] = 0
    start_time: Annotated[Timestamp, Meta(description="When this run began.")] | None = None
    node_name: Annotated[str, Meta(description="Node of the pod; its agent carries the run out.", max_length=253)] = ""
    pod_uid: Annotated[
        str, Meta(description="The pod's uid: a new pod of the same name is another.", max_length=64)
    ] = field(name="podUID", default="")
    mode: Annotated[RunMode | None, Meta(description="How the run saves: container or application.")] = None
    mode_reason: Annotated[str, Meta(description="Why this mode.", max_length=1024)] = ""
    next_checkpoint_time: Annotated[Timestamp, Meta(description="When the next run is due.")] | None = None
    missed_runs: Annotated[
        Count, Meta(description="Runs that were due while one was under way, or while nobody looked.")
    ] = 0
    frozen_seconds: (
        Annotated[float, Meta(description="Seconds for which containers stood still in the last run.", ge=0)] | None
    ) = None
    bytes: Annotated[Count, Meta(description="Size of the last run's images.")] = 0
    last_checkpoint_time: Annotated[Timestamp, Meta(description="When the last one was taken.")] | None = None
    completion_time: Annotated[Timestamp, Meta(description="When its images were pushed.")] | None = None
    built_images: Annotated[
        tuple[BuiltImage, ...],
        Meta(
            description="The images of the last checkpoint.",
            max_length=64,
            extra_json_schema=list_map_keys("containerName"),
        ),
    ] = ()
    message: (
        Annotated[str, Meta(description="What is done, or what went wrong, in a sentence.", max_length=32768)] | None
    ) = None
    conditions: Annotated[Conditions, Meta(description="Completed and Failed, for kubectl wait.")] = ()


_STARTED = "has(self.status) && (has(self.status.phase) || (has(self.status.run) && self.status.run > 0))"


class CheckpointBackup(Object, frozen=True, kw_only=True):
    """Checkpoints of a running pod's containers, pushed as images that a pod can be started from."""

    RULES: ClassVar = (
        *immutable_while(
            (".spec.podRef", ".spec.resourceRef"),
            while_=_STARTED,
            message="checkpoints of this pod were taken already: create another CheckpointBackup for another pod",
        ),
        *immutable_while(
            (
                ".spec.schedule",
                ".spec.stopPod",
                ".spec.registry",
                ".spec.containers",
                ".spec.mode",
                ".spec.compression",
            ),
            while_=f"{_STARTED} && oldSelf.spec.schedule == '{IMMEDIATELY}'",
            message="this backup is taken once and has begun: create another CheckpointBackup",
        ),
    )

    spec: Annotated[CheckpointBackupSpec, Meta(description="Which pod, when, and where to.")]
    status: Annotated[
        CheckpointBackupStatus | None,
        Meta(description="How the runs go. Written by the operator and the node's agent."),
    ] = None


def run_conditions(
    phase: Phase | None, *, reason: str, message: str, generation: int, at: str
) -> tuple[Condition, Condition]:
    """The conditions Completed and Failed of a run in this phase, for whoever writes the phase: operator or agent.

    reason: one word, such as PodEnded. Merge them into the status with `conditions.merge_conditions`.
    """
    true_type = "Completed" if phase in SUCCESSFUL_PHASES else "Failed" if phase in TERMINAL_PHASES else ""

    def condition(kind: str) -> Condition:
        return Condition(
            type=kind,
            status="True" if kind == true_type else "False",
            reason=reason,
            message=message,
            last_transition_time=at,
            observed_generation=generation,
        )

    return condition("Completed"), condition("Failed")


KIND = Kind(
    group="migration.dcnlab.com",
    versions=("v1", "v1alpha1"),
    kind="CheckpointBackup",
    plural="checkpointbackups",
    short_name="cb",
    model=CheckpointBackup,
    columns=(
        PrinterColumn(name="SCHEDULE", path=".spec.schedule", description="When checkpoints are taken."),
        PrinterColumn(name="POD", path=".spec.podRef.name", description="The pod."),
        PrinterColumn(name="PHASE", path=".status.phase", description="How far the checkpoint is."),
        PrinterColumn(
            name="LAST-CHECKPOINT", path=".status.lastCheckpointTime", type="date", description="Since the last one."
        ),
        # Not a date: kubectl prints those as ages, and has none for what is still to come.
        PrinterColumn(name="NEXT", path=".status.nextCheckpointTime", description="When the next one is due."),
        AGE,
        PrinterColumn(name="MODE", path=".status.mode", wide=True, description="How the state is saved."),
        PrinterColumn(name="NODE", path=".status.nodeName", wide=True, description="Where the pod runs."),
        PrinterColumn(name="IMAGE", path=".status.builtImages[0].imageName", wide=True, description="The first image."),
        PrinterColumn(name="MESSAGE", path=".status.message", wide=True, description="What is done, or went wrong."),
    ),
)
