"""What the operator reports of a TrainingJob."""

from typing import Annotated, Literal

from msgspec import Meta

from holdfast.api.meta import ApiStruct, Conditions, ObservedGeneration
from holdfast.api.scalars import Count, Timestamp

State = Literal["Pending", "Initializing", "Running", "Completed", "Failed", "Suspended", "Restarting"]


class WorkerCounts(ApiStruct, frozen=True, kw_only=True):
    active: Annotated[Count, Meta(description="Workers whose pod is pending or running.")] = 0
    succeeded: Annotated[Count, Meta(description="Workers that have finished.")] = 0
    failed: Annotated[Count, Meta(description="Workers of this attempt that have failed.")] = 0
    desired: Annotated[Count, Meta(description="Workers that the current attempt is made for.")] = 0


class CheckpointStatus(ApiStruct, frozen=True, kw_only=True):
    last: Annotated[str, Meta(description="The newest valid checkpoint.", max_length=2048)] | None = None
    last_time: Annotated[Timestamp, Meta(description="When it was complete.")] | None = None
    last_epoch: Annotated[Count, Meta(description="How many epochs were done when it was saved.")] | None = None
    best: (
        Annotated[
            str,
            Meta(
                description="The valid checkpoint with the highest accuracy where successPolicy.targetAccuracy is set, "
                "else with the lowest loss. It is kept beside the newest ones.",
                max_length=2048,
            ),
        ]
        | None
    ) = None
    count: Annotated[Count, Meta(description="How many valid checkpoints are kept.")] = 0
    resumed_from: (
        Annotated[str, Meta(description="The checkpoint that the current attempt started from.", max_length=2048)]
        | None
    ) = None


class EpochProgress(ApiStruct, frozen=True, kw_only=True):
    attempt: Annotated[Count, Meta(description="The attempt (restartCount) that this was told by.")] = 0
    done: Annotated[Count, Meta(description="The last epoch of this attempt whose end was told.")] = 0
    position: Annotated[
        float, Meta(description="How many epochs are done, with the part of the one under way.", ge=0)
    ] = 0.0
    position_time: Annotated[Timestamp, Meta(description="When it had come so far.")] | None = None
    seconds_each: Annotated[float, Meta(description="How long an epoch takes, lately.", ge=0)] | None = None
    best_loss: (
        Annotated[float, Meta(description="The lowest loss at the end of an epoch, over all attempts.")] | None
    ) = None
    best_epoch: Annotated[Count, Meta(description="The epoch that had it.")] | None = None
    goal: (
        Annotated[
            Literal["TargetReached", "EarlyStopped"],
            Meta(description="Which part of successPolicy was met at the end of the epoch `done`; the job ends then."),
        ]
        | None
    ) = None
    goal_time: Annotated[Timestamp, Meta(description="When that was found.")] | None = None


class AllocatedResources(ApiStruct, frozen=True, kw_only=True):
    gpus: Annotated[Count, Meta(description="GPUs that the job holds, over all workers.")] = 0
    workers: Annotated[Count, Meta(description="Workers that hold them.")] = 0


class RestartCounts(ApiStruct, frozen=True, kw_only=True):
    preemption: Annotated[Count, Meta(description="A worker's machine was taken away. Free.")] = 0
    infrastructure: Annotated[Count, Meta(description="A node was lost, or a pod evicted. Free.")] = 0
    out_of_memory: Annotated[Count, Meta(description="A worker ran out of memory. Counts against backoffLimit.")] = 0
    hang: Annotated[
        Count, Meta(description="No progress for progressDeadlineSeconds. Counts against backoffLimit.")
    ] = 0
    application: Annotated[Count, Meta(description="The training itself failed. Counts against backoffLimit.")] = 0


class TrainingJobStatus(ApiStruct, frozen=True, kw_only=True):
    observed_generation: ObservedGeneration = 0
    state: Annotated[
        State | None,
        Meta(
            description="Where the job stands. Pending: it waits for room, or for what it refers to. Initializing: its "
            "objects are made and not all workers run yet. Running: all workers run. Restarting: workers were lost "
            "or the number of workers changed, and a new attempt is on its way. Suspended: stopped by spec.suspend. "
            "Completed and Failed are final."
        ),
    ] = None
    message: (
        Annotated[str, Meta(description="What the job waits for, or why it ended, in a sentence.", max_length=32768)]
        | None
    ) = None
    conditions: Annotated[
        Conditions, Meta(description="Created, Running, Suspended, Restarting, Succeeded and Failed, for kubectl wait.")
    ] = ()
    progress: Annotated[str, Meta(description='How far the training is, such as "45%".', max_length=16)] | None = None
    current_epoch: Annotated[Count, Meta(description="The epoch that is being trained.")] | None = None
    total_epochs: Annotated[Count, Meta(description="How many epochs there will be.")] | None = None
    metrics: Annotated[
        dict[str, float],
        Meta(description="The last reported values: loss, accuracy and whatever else is reported.", max_length=64),
    ] = {}
    epochs: Annotated[EpochProgress | None, Meta(description="What the estimate and successPolicy rest on.")] = None
    workers: Annotated[WorkerCounts | None, Meta(description="How many workers there are.")] = None
    selector: (
        Annotated[str, Meta(description="Selects the workers' pods; the scale subresource shows it.", max_length=512)]
        | None
    ) = None
    checkpoint: Annotated[CheckpointStatus | None, Meta(description="The checkpoints that are there.")] = None
    resources: Annotated[AllocatedResources | None, Meta(description="What the job holds at the moment.")] = None
    start_time: Annotated[Timestamp, Meta(description="When the first worker started.")] | None = None
    completion_time: Annotated[Timestamp, Meta(description="When the job ended.")] | None = None
    duration: (
        Annotated[
            str,
            Meta(
                description='From start to end, such as "2h13m". While the job runs it is rounded down: to minutes in '
                "the first ten, to ten minutes in the first two hours, then to hours.",
                max_length=32,
            ),
        ]
        | None
    ) = None
    estimated_completion_time: (
        Annotated[Timestamp, Meta(description="When the job would end at its present pace.")] | None
    ) = None
    failure_reason: (
        Annotated[
            str,
            Meta(
                description="Why the last attempt failed: the worker, its exit code, its node, the end of its log.",
                max_length=32768,
            ),
        ]
        | None
    ) = None
    restart_count: Annotated[Count, Meta(description="How many attempts there were after the first.")] = 0
    restarts: Annotated[RestartCounts | None, Meta(description="The restarts by their cause.")] = None
    quick_restarts: Annotated[
        Count,
        Meta(description="Restarts in a row after attempts that did not last; the wait before the next one doubles."),
    ] = 0
    suspended_seconds: Annotated[
        Count, Meta(description="How long the job was suspended so far; activeDeadlineSeconds leaves it out.")
    ] = 0
    next_retry_time: Annotated[Timestamp, Meta(description="When the next attempt starts, while it waits.")] | None = (
        None
    )
