"""CheckpointBackup: images of a running pod's containers, once or on a schedule."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from holdfast.api.core.pod import ObjectReference
from holdfast.api.kind import AGE, Column, Kind
from holdfast.api.meta import ApiStruct, Conditions, Object, ObservedGeneration
from holdfast.api.scalars import DnsLabel, DnsSubdomain, Image, Timestamp, list_map_keys
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


def _cron_field(value: str) -> str:
    """A list of values, ranges and steps, where one value looks like `value`."""
    part = rf"([*]|({value})(-({value}))?)(/[1-9][0-9]?)?"
    return rf"{part}(,{part})*"


_CRON = " +".join(
    _cron_field(value)
    for value in (
        "[0-5]?[0-9]",
        "[01]?[0-9]|2[0-3]",
        "0?[1-9]|[12][0-9]|3[01]",
        "0?[1-9]|1[0-2]|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec",
        "[0-7]|sun|mon|tue|wed|thu|fri|sat",
    )
)
_SCHEDULE = f"^(immediately|@(yearly|annually|monthly|weekly|daily|midnight|hourly)|(?i:{_CRON}))$"


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
        Meta(description="Secret of type kubernetes.io/dockerconfigjson with the registry's credentials."),
    ] = None


class ContainerImage(ApiStruct, frozen=True, kw_only=True):
    name: Annotated[DnsLabel, Meta(description="The container.")]
    image: (
        Annotated[Image, Meta(description="Image that it is pushed as; named after pod and container without it.")]
        | None
    ) = None


class CheckpointBackupSpec(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule=f"self.schedule.matches(r'{_SCHEDULE}')",
            message='write "immediately" for one checkpoint now, or a cron expression of five fields such as '
            '"*/30 * * * *" (minute, hour, day of month, month, day of week)',
            field=".schedule",
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


class BuiltImage(ApiStruct, frozen=True, kw_only=True):
    container_name: Annotated[str, Meta(description="The container.", max_length=63)]
    image_name: Annotated[str, Meta(description="Its image, as a pod can name it.", max_length=1024)]


class CheckpointBackupStatus(ApiStruct, frozen=True, kw_only=True):
    observed_generation: ObservedGeneration = 0
    phase: Annotated[Phase | None, Meta(description="How far the current or last checkpoint is.")] = None
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


_STARTED = "has(self.status) && has(self.status.phase)"


class CheckpointBackup(Object, frozen=True, kw_only=True):
    """Checkpoints of a running pod's containers, pushed as images that a pod can be started from."""

    RULES: ClassVar = (
        *immutable_while(
            (".spec.podRef", ".spec.resourceRef"),
            while_=_STARTED,
            message="checkpoints of this pod were taken already: create another CheckpointBackup for another pod",
        ),
        *immutable_while(
            (".spec.schedule", ".spec.stopPod", ".spec.registry", ".spec.containers"),
            while_=f"{_STARTED} && oldSelf.spec.schedule == 'immediately'",
            message="this backup is taken once and has begun: create another CheckpointBackup",
        ),
    )

    spec: Annotated[CheckpointBackupSpec, Meta(description="Which pod, when, and where to.")]
    status: Annotated[
        CheckpointBackupStatus | None, Meta(description="What the agent has found. Written by the agent alone.")
    ] = None


KIND = Kind(
    group="migration.dcnlab.com",
    versions=("v1", "v1alpha1"),
    kind="CheckpointBackup",
    plural="checkpointbackups",
    short_name="cb",
    model=CheckpointBackup,
    columns=(
        Column(name="SCHEDULE", path=".spec.schedule", description="When checkpoints are taken."),
        Column(name="POD", path=".spec.podRef.name", description="The pod."),
        Column(name="PHASE", path=".status.phase", description="How far the checkpoint is."),
        Column(
            name="LAST-CHECKPOINT", path=".status.lastCheckpointTime", type="date", description="Since the last one."
        ),
        AGE,
        Column(name="IMAGE", path=".status.builtImages[0].imageName", wide=True, description="The first image."),
        Column(name="MESSAGE", path=".status.message", wide=True, description="What is done, or went wrong."),
    ),
)
