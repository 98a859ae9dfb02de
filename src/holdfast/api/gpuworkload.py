"""GPUWorkload: one container on the right GPU node."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from holdfast.api.core.pod import EnvVarField, ResourceRequirementsField, reserved_env_rule
from holdfast.api.core.scheduling import TolerationField
from holdfast.api.kind import AGE, Kind, PrinterColumn
from holdfast.api.meta import ApiStruct, Conditions, Object, ObservedGeneration
from holdfast.api.scalars import Argument, Count, Image, Labels, Seconds, Timestamp, list_map_keys
from holdfast.api.schema.rules import (
    SHORT_NAME,
    Rule,
    immutable_while,
    label_keys_rule,
    suspend_immutable_while,
)

Strategy = Literal["leastLoaded", "random", "costOptimized"]
Phase = Literal["Pending", "Scheduling", "Scheduled", "Running", "Failed", "Succeeded"]


class RetryPolicy(ApiStruct, frozen=True, kw_only=True):
    max_retries: Annotated[
        int, Meta(description="How many failed tries are followed by another; 3 by default.", ge=0, le=1000)
    ] = 3
    backoff_seconds: Annotated[
        int,
        Meta(
            description="Base of the wait before a retry; 30 by default. The wait doubles with each retry, varies by a "
            "tenth, and never exceeds 300 seconds.",
            ge=1,
            le=300,
        ),
    ] = 30


def _agrees_with_gpus(side: str) -> Rule:
    amounts = f"self.resources.{side}"
    return Rule(
        rule=f"!has(self.resources) || !has({amounts}) || !('nvidia.com/gpu' in {amounts}) || "
        f"string({amounts}['nvidia.com/gpu']) == string(self.gpuCount)",
        message=f"gpuCount and nvidia.com/gpu in resources.{side} name different numbers: "
        "leave the GPUs out of resources",
        field=".gpuCount",
    )


class GPUWorkloadSpec(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        _agrees_with_gpus("limits"),
        _agrees_with_gpus("requests"),
        label_keys_rule("nodeSelector"),
        reserved_env_rule(),
    )

    model_name: Annotated[
        str,
        Meta(
            description="What is run: a name for your program, given to it as MODEL. With neither image nor command, a "
            "model of the reference trainer.",
            min_length=1,
            max_length=253,
        ),
    ]
    gpu_count: Annotated[int, Meta(description="How many GPUs the workload needs, all on one node.", ge=1, le=64)]
    priority: Annotated[
        int,
        Meta(
            description="Workloads of higher priority are placed first; 0 by default.",
            ge=-1000000000,
            le=1000000000,
            extra_json_schema={"default": 0},
        ),
    ] = 0
    scheduling_strategy: Annotated[
        Strategy,
        Meta(
            description="Which node is taken among those with enough free GPUs. leastLoaded (default): the one with "
            "the most free. random: any. costOptimized: one labelled gpu-orchestrator/cheap-node=true, else as "
            "leastLoaded.",
            extra_json_schema={"default": "leastLoaded"},
        ),
    ] = "leastLoaded"
    retry_policy: Annotated[
        RetryPolicy | None, Meta(description="What happens after a failed try. Without it, 3 retries.")
    ] = None
    image: (
        Annotated[Image, Meta(description="Container image. Without it, the operator's configured default image.")]
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
            description="Environment variables of the container.",
            max_length=256,
            extra_json_schema=list_map_keys("name"),
        ),
    ] = ()
    resources: Annotated[
        ResourceRequirementsField | None,
        Meta(description="CPU, memory and other resources. GPUs are added from gpuCount."),
    ] = None
    tolerations: (
        Annotated[
            tuple[TolerationField, ...],
            Meta(
                description="Taints that the pod puts up with. Without it, nvidia.com/gpu with any value; an empty "
                "list means none.",
                max_length=32,
            ),
        ]
        | None
    ) = None
    node_selector: Annotated[Labels, Meta(description="Labels that a node must have.")] = {}
    ttl_seconds_after_finished: (
        Annotated[
            Seconds,
            Meta(
                description="Delete the workload so long after it ended; never without it. May be changed at any time."
            ),
        ]
        | None
    ) = None
    suspend: Annotated[
        bool, Meta(description="true stops the workload and gives its GPUs back; false places it again.")
    ] = False


class GPUWorkloadStatus(ApiStruct, frozen=True, kw_only=True):
    observed_generation: ObservedGeneration = 0
    phase: Annotated[
        Phase | None,
        Meta(
            description="Where the workload stands. Pending: it waits for GPUs, for a retry, or is suspended. "
            "Scheduling: a node is chosen, and its Job is being made. Scheduled: the Job is made. Running: its pod "
            "runs. Succeeded and Failed are final."
        ),
    ] = None
    assigned_node: Annotated[str, Meta(description="The node that was chosen.", max_length=253)] | None = None
    job_name: Annotated[str, Meta(description="The Job of the current try.", max_length=253)] | None = None
    last_schedule_time: Annotated[Timestamp, Meta(description="When a node was last chosen.")] | None = None
    retry_count: Annotated[
        Count,
        Meta(
            description="How many tries failed by themselves and were followed by another. A try that lost its node "
            "does not count.",
            extra_json_schema={"default": 0},
        ),
    ] = 0
    next_retry_time: Annotated[Timestamp, Meta(description="When the next try starts, while it waits.")] | None = None
    avoided_node: (
        Annotated[
            str,
            Meta(
                description="The node on which the last try failed or was lost: the next one goes elsewhere if it can.",
                max_length=253,
            ),
        ]
        | None
    ) = None
    message: (
        Annotated[str, Meta(description="What is waited for, or why it ended, in a sentence.", max_length=32768)] | None
    ) = None
    conditions: Annotated[
        Conditions, Meta(description="Scheduled, Running, Succeeded and Failed, for kubectl wait.")
    ] = ()


_PHASE = "has(self.status) && has(self.status.phase)"


class GPUWorkload(Object, frozen=True, kw_only=True):
    """A container that needs GPUs of one node, and a strategy for choosing that node."""

    RULES: ClassVar = (
        SHORT_NAME,
        *immutable_while(
            (
                ".spec.modelName",
                ".spec.gpuCount",
                ".spec.schedulingStrategy",
                ".spec.image",
                ".spec.command",
                ".spec.args",
                ".spec.env",
                ".spec.resources",
                ".spec.tolerations",
                ".spec.nodeSelector",
            ),
            while_=f"{_PHASE} && self.status.phase != 'Pending'",
            message="can't change once a node is being chosen: set spec.suspend: true, wait for phase Pending, change "
            "it and set spec.suspend: false. A workload that has ended can't change at all: delete it first, or create "
            "a new one",
        ),
        suspend_immutable_while(
            while_=f"{_PHASE} && self.status.phase in ['Succeeded', 'Failed']",
            message="the workload has ended, so this would change nothing: delete it first, or create a new one",
        ),
    )

    spec: Annotated[GPUWorkloadSpec, Meta(description="What to run and where.")]
    status: Annotated[
        GPUWorkloadStatus | None, Meta(description="What the operator has found. Written by the operator alone.")
    ] = None


KIND = Kind(
    group="gpu.warp.dev",
    versions=("v1alpha1",),
    kind="GPUWorkload",
    plural="gpuworkloads",
    short_name="gpuw",
    model=GPUWorkload,
    columns=(
        PrinterColumn(name="PHASE", path=".status.phase", description="Where the workload stands."),
        PrinterColumn(name="NODE", path=".status.assignedNode", description="The node that was chosen."),
        PrinterColumn(name="GPUS", path=".spec.gpuCount", type="integer", description="GPUs that it needs."),
        PrinterColumn(name="STRATEGY", path=".spec.schedulingStrategy", description="How the node is chosen."),
        PrinterColumn(
            name="RETRIES",
            path=".status.retryCount",
            type="integer",
            description="Tries that failed and were followed by another.",
        ),
        AGE,
        PrinterColumn(name="MODEL", path=".spec.modelName", wide=True, description="What is run."),
        PrinterColumn(
            name="PRIORITY", path=".spec.priority", type="integer", wide=True, description="Higher goes first."
        ),
        PrinterColumn(name="MESSAGE", path=".status.message", wide=True, description="What is waited for."),
    ),
)
