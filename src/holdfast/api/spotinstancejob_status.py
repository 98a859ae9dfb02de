"""The status of a SpotInstanceJob: all that is decided about it, so that an operator can go on from it alone."""

from typing import Annotated, Literal

from msgspec import Meta

from holdfast.api.checkpointbackup import RunMode
from holdfast.api.meta import ApiStruct, Conditions, ObservedGeneration
from holdfast.api.scalars import Count, Timestamp, list_map_keys

Phase = Literal["Pending", "Provisioning", "Running", "Recovering", "Suspended", "Succeeded", "Failed"]
ReplicaPhase = Literal["Pending", "Provisioning", "Starting", "Running", "Recovering", "Stopped", "Succeeded", "Failed"]
# Why an attempt ended: a TrainingJob's failure classes, without the hang, which nobody looks for here.
Cause = Literal["preemption", "infrastructure", "outOfMemory", "application"]
RecoverySource = Literal["survivor", "repository", "start"]
# Interval: it was due. Recovery: another replica goes on from it. Notice: the replica's machine is being taken away.
CheckpointReason = Literal["Interval", "Recovery", "Notice", "Suspend"]
MOST_RECOVERIES = 10
# A number that people look for is there when it is 0.
SHOWN_ZERO = {"default": 0}
# Images that did not restore are remembered, the latest last; older ones are long deleted.
MOST_IMAGE_FAILURES = 10
# The cost of the last checkpoints decides the interval `auto`.
MOST_CHECKPOINT_COSTS = 5


class Restarts(ApiStruct, frozen=True, kw_only=True):
    preemption: Annotated[Count, Meta(description="A replica's machine was taken away. Free.")] = 0
    infrastructure: Annotated[Count, Meta(description="A node was lost, or a pod evicted. Free.")] = 0
    out_of_memory: Annotated[Count, Meta(description="A replica ran out of memory. Counts against backoffLimit.")] = 0
    application: Annotated[Count, Meta(description="The training itself failed. Counts against backoffLimit.")] = 0


class Recovery(ApiStruct, frozen=True, kw_only=True):
    time: Annotated[Timestamp, Meta(description="When the new attempt was started.")]
    replica: Annotated[Count, Meta(description="The replica.")]
    cause: Annotated[Cause, Meta(description="Why the attempt before it ended.")]
    source: Annotated[
        RecoverySource,
        Meta(
            description="Where its state came from: the checkpoint of a survivor that was taken for it, the newest "
            "valid image in the repository, or nowhere: start."
        ),
    ]
    image: Annotated[str, Meta(description="The image that it started from.", max_length=1024)] | None = None
    lost_seconds: Annotated[
        Count,
        Meta(
            description="Seconds of training that were lost: from that checkpoint to the loss.",
            extra_json_schema=SHOWN_ZERO,
        ),
    ] = 0


class ReplicaStatus(ApiStruct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(description="Name of the Job of its current attempt.", max_length=253)]
    replica: Annotated[Count, Meta(description="Number of the replica, from 0.", extra_json_schema=SHOWN_ZERO)] = 0
    attempt: Annotated[Count, Meta(description="Number of its attempt, from 0.", extra_json_schema=SHOWN_ZERO)] = 0
    phase: Annotated[
        ReplicaPhase | None,
        Meta(
            description="Where the replica stands. Pending: it waits for room or for a machine to be ordered. "
            "Provisioning: its machine boots and joins. Starting: its pod is made and does not run yet. Running. "
            "Recovering: it was lost, and waits for an image and a node. Stopped: the job is suspended or over. "
            "Succeeded and Failed are final."
        ),
    ] = None
    node_name: Annotated[str, Meta(description="Node that it runs on.", max_length=253)] | None = None
    machine: (
        Annotated[
            str,
            Meta(
                description="The ProvisionedInstance that was ordered for this attempt; none where a node had room.",
                max_length=253,
            ),
        ]
        | None
    ) = None
    machine_try: Annotated[
        Count, Meta(description="How many machines were ordered for this attempt so far, one after the other.")
    ] = 0
    cause: Annotated[Cause | None, Meta(description="Why the attempt before this one ended.")] = None
    source: Annotated[
        RecoverySource | None,
        Meta(description="Where the state of this attempt comes from; none while that is not decided."),
    ] = None
    restored_from: (
        Annotated[str, Meta(description="The image that this attempt starts from.", max_length=1024)] | None
    ) = None
    awaited_checkpoint: Annotated[
        Count,
        Meta(description="Number of the checkpoint that this attempt is to start from; 0 where none is taken for it."),
    ] = 0
    lost_time: Annotated[Timestamp, Meta(description="When the attempt before this one was lost.")] | None = None
    retry_time: (
        Annotated[Timestamp, Meta(description="When this attempt may start, after failures in a row.")] | None
    ) = None
    message: (
        Annotated[str, Meta(description="Why the attempt before this one ended, in a sentence.", max_length=32768)]
        | None
    ) = None
    checkpoint_number: Annotated[
        Count, Meta(description="Number of its newest CheckpointBackup, over all attempts; 0 while there is none.")
    ] = 0
    checkpoint_time: Annotated[Timestamp, Meta(description="When that one was asked for.")] | None = None
    last_checkpoint_time: Annotated[Timestamp, Meta(description="When its newest checkpoint was taken.")] | None = None
    last_checkpoint_seconds: Annotated[
        Count, Meta(description="Seconds from the request for that checkpoint to its last image.")
    ] = 0
    last_checkpoint_image: Annotated[str, Meta(description="Its newest checkpoint image.", max_length=1024)] | None = (
        None
    )


class CheckpointInProgress(ApiStruct, frozen=True, kw_only=True):
    number: Annotated[Count, Meta(description="Its number; numbers are the job's, and only grow.")]
    replica: Annotated[Count, Meta(description="The replica that is saved.")]
    job: Annotated[str, Meta(description="Name of the Job of the attempt that is saved.", max_length=253)]
    reason: Annotated[
        CheckpointReason,
        Meta(
            description="Interval: it was due. Recovery: a lost replica is to go on from it. Notice: the machine of "
            "the replica is being taken away. Suspend: the job is being suspended."
        ),
    ]
    time: Annotated[Timestamp, Meta(description="When it was asked for.")]


class ImageFailures(ApiStruct, frozen=True, kw_only=True):
    image: Annotated[str, Meta(description="The image, as restoredFrom names it.", max_length=1024)]
    restore: Annotated[Count, Meta(description="How often no container could be made from it.")] = 0
    application: Annotated[Count, Meta(description="How often a training that went on from it failed by itself.")] = 0


class SpotInstanceJobStatus(ApiStruct, frozen=True, kw_only=True):
    observed_generation: ObservedGeneration = 0
    phase: Annotated[
        Phase | None,
        Meta(
            description="Where the job stands. Pending: it waits for what it refers to, or for GPUs. Provisioning: "
            "machines are on their way, and no replica runs. Running: a replica runs. Recovering: a replica was lost "
            "and is being brought back; others may run. Suspended: stopped by spec.suspend. Succeeded and Failed are "
            "final."
        ),
    ] = None
    message: (
        Annotated[str, Meta(description="What the job waits for, or why it ended, in a sentence.", max_length=32768)]
        | None
    ) = None
    conditions: Annotated[
        Conditions,
        Meta(
            description="For kubectl wait. Provisioning: machines are being made; False names what keeps them from it. "
            "Running: a replica runs. Checkpointed: there is an image to go on from. Recovering: a lost replica is "
            "being brought back. Succeeded and Failed."
        ),
    ] = ()
    active_replicas: Annotated[Count, Meta(description="Replicas that run.", extra_json_schema=SHOWN_ZERO)] = 0
    start_time: Annotated[Timestamp, Meta(description="When the first replica started.")] | None = None
    completion_time: Annotated[Timestamp, Meta(description="When the job ended.")] | None = None
    restarts: Annotated[Restarts | None, Meta(description="The new attempts of all replicas, by their cause.")] = None
    last_checkpoint_time: Annotated[Timestamp, Meta(description="When the newest checkpoint was taken.")] | None = None
    last_checkpoint_image: (
        Annotated[
            str,
            Meta(
                description="The newest checkpoint image of any replica: of the first container with a GPU, else of "
                "the first.",
                max_length=1024,
            ),
        ]
        | None
    ) = None
    next_checkpoint_time: Annotated[Timestamp, Meta(description="When the next one is due.")] | None = None
    checkpoint_interval_seconds: (
        Annotated[
            Count, Meta(description="Seconds between two checkpoints of a replica, as written or as chosen by auto.")
        ]
        | None
    ) = None
    checkpoint_mode: Annotated[
        RunMode | None, Meta(description="How replicas are saved, as decided when the first of them was started.")
    ] = None
    checkpoint_number: Annotated[Count, Meta(description="Number of the newest checkpoint that was asked for.")] = 0
    checkpoints_in_progress: Annotated[
        tuple[CheckpointInProgress, ...],
        Meta(
            description="Checkpoints that were asked for and have not ended.",
            max_length=64,
            extra_json_schema=list_map_keys("number"),
        ),
    ] = ()
    checkpoint_costs: Annotated[
        tuple[Annotated[float, Meta(ge=0)], ...],
        Meta(
            description="Seconds for which replicas stood still in the last checkpoints, the newest last.",
            max_length=MOST_CHECKPOINT_COSTS,
        ),
    ] = ()
    image_failures: Annotated[
        tuple[ImageFailures, ...],
        Meta(
            description="Images that replicas could not go on from. After two failures an older image is used.",
            max_length=MOST_IMAGE_FAILURES,
            extra_json_schema=list_map_keys("image"),
        ),
    ] = ()
    suspend_time: Annotated[Timestamp, Meta(description="Since when it is suspended.")] | None = None
    suspended_seconds: Annotated[
        Count, Meta(description="How long it was suspended before; activeDeadlineSeconds does not count that.")
    ] = 0
    recoveries: Annotated[
        tuple[Recovery, ...],
        Meta(
            description="The last attempts that were started after a loss, the newest last.", max_length=MOST_RECOVERIES
        ),
    ] = ()
    job_statuses: Annotated[
        tuple[ReplicaStatus, ...],
        Meta(
            description="The replicas, one by one.",
            max_length=64,
            extra_json_schema=list_map_keys("name"),
        ),
    ] = ()
