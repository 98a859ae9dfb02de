"""Every field of the spec: this is written, exactly that changes in the objects."""

import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from holdfast.api.core.scheduling import AffinityField
from holdfast.api.meta import ApiStruct
from holdfast.api.trainingjob import TrainingJobSpec
from tests.trainingjob.objects.family import DEFAULTS, GONE, changed
from tests.trainingjob.objects.paths import (
    JOB,
    JSON,
    POD,
    SIDECAR,
    TEMPLATE,
    TRAINER,
    no_variables,
    removed,
    variable,
    variables,
)
from tests.trainingjob.objects.test_checkpoint_fields import CHECKPOINTS, STORES
from tests.trainingjob.objects.test_template_fields import TEMPLATES

TASK = "ConfigMap bert-config data"
MASTER = "Service bert-master spec"
HEADLESS = "Service bert-headless spec"
GPUS = [f"{TRAINER}.resources.{side}.nvidia.com/gpu" for side in ("limits", "requests")]
TOLERATION = {f"{POD}.tolerations[0].key": "nvidia.com/gpu", f"{POD}.tolerations[0].operator": "Exists"}
PYTORCH = [
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "RANK",
    "NODE_RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "PET_NNODES",
    "PET_NODE_RANK",
    "PET_NPROC_PER_NODE",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
]

WORKERS = {f"{JOB}.completions": 4, f"{JOB}.parallelism": 4, variable("WORLD_SIZE"): "4", variable("PET_NNODES"): "4"}

PLAIN: list[tuple[str, JSON, JSON]] = [
    ("model", {"model": "bert"}, {variable("MODEL"): "bert", f"{TASK}.model": "bert"}),
    ("dataset", {"dataset": "wiki text"}, {variable("DATASET"): "wiki text", f"{TASK}.dataset": "wiki text"}),
    (
        "numWorkers",
        {"numWorkers": 4},
        WORKERS,
    ),
    ("gpusPerWorker", {"gpusPerWorker": 2}, {**dict.fromkeys(GPUS, "2"), variable("PET_NPROC_PER_NODE"): "2"}),
    (
        "gpusPerWorker",
        {"gpusPerWorker": 0},
        {
            **removed(*GPUS, *TOLERATION),
            f"{TRAINER}.resources": {},
            **no_variables("NCCL_IB_DISABLE"),
            variable("HOLDFAST_BACKEND"): "gloo",
            f"{TASK}.networking.backend": "gloo",
        },
    ),
    (
        "framework",
        {"framework": "jax"},
        {
            f"{TASK}.framework": "jax",
            **no_variables(*PYTORCH),
            **variables(
                JAX_COORDINATOR_ADDRESS="bert-training-0.bert-headless.ml.svc:29500",
                JAX_NUM_PROCESSES="2",
                JAX_PROCESS_ID="$(HOLDFAST_INDEX)",
            ),
        },
    ),
    ("image", {"image": "torch:2"}, {f"{TRAINER}.image": "torch:2"}),
    ("command", {"command": ["torchrun"]}, {f"{TRAINER}.command": ["torchrun"]}),
    ("args", {"args": ["train.py", "-v"]}, {f"{TRAINER}.args": ["train.py", "-v"]}),
    ("env", {"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}, variables(NCCL_DEBUG="INFO")),
    (
        "resources",
        {"resources": {"requests": {"cpu": "8"}, "limits": {"memory": "64Gi"}}},
        {f"{TRAINER}.resources.requests.cpu": "8", f"{TRAINER}.resources.limits.memory": "64Gi"},
    ),
    *(
        (
            f"hyperparameters.{name}",
            {"hyperparameters": {name: value}},
            {f"{TASK}.hyperparameters.{name}": value, f"{TASK}.hyperparameters": GONE, **variables(**{shown: text})},
        )
        for name, value, shown, text in (
            ("learningRate", 0.5, "LEARNING_RATE", "0.5"),
            ("batchSize", 16, "BATCH_SIZE", "16"),
            ("epochs", 3, "EPOCHS", "3"),
            ("optimizer", "adamw", "OPTIMIZER", "adamw"),
            ("warmupSteps", 100, "WARMUP_STEPS", "100"),
            ("gradientAccumulationSteps", 4, "GRADIENT_ACCUMULATION_STEPS", "4"),
            ("mixedPrecision", True, "MIXED_PRECISION", "true"),
        )
    ),
    (
        "hyperparameters.additionalParams",
        {"hyperparameters": {"additionalParams": {"label-smoothing": "0.1"}}},
        {
            f"{TASK}.hyperparameters": GONE,
            f"{TASK}.hyperparameters.additionalParams.label-smoothing": "0.1",
            **variables(PARAM_LABEL_SMOOTHING="0.1"),
        },
    ),
    ("scheduling.priority", {"scheduling": {"priority": "high"}}, {f"{POD}.priorityClassName": "high"}),
    (
        "scheduling.nodeSelector",
        {"scheduling": {"nodeSelector": {"gpu": "a100"}}},
        {f"{POD}.nodeSelector.gpu": "a100"},
    ),
    (
        "scheduling.affinity",
        {
            "scheduling": {
                "affinity": {
                    "nodeAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {"weight": 1, "preference": {"matchExpressions": [{"key": "spot", "operator": "Exists"}]}}
                        ]
                    }
                }
            }
        },
        {
            f"{POD}.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].{rest}": value
            for rest, value in (
                ("weight", 1),
                ("preference.matchExpressions[0].key", "spot"),
                ("preference.matchExpressions[0].operator", "Exists"),
            )
        },
    ),
    (
        "scheduling.tolerations",
        {"scheduling": {"tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}]}},
        {f"{POD}.tolerations[0].key": "spot", f"{POD}.tolerations[0].effect": "NoSchedule"},
    ),
    ("scheduling.tolerations", {"scheduling": {"tolerations": []}}, removed(*TOLERATION)),
    (
        "networking.backend",
        {"networking": {"backend": "gloo"}},
        {
            variable("HOLDFAST_BACKEND"): "gloo",
            f"{TASK}.networking.backend": "gloo",
            **no_variables("NCCL_IB_DISABLE"),
        },
    ),
    (
        "networking.masterPort",
        {"networking": {"masterPort": 2222}},
        {
            variable("MASTER_PORT"): "2222",
            variable("PET_MASTER_PORT"): "2222",
            f"{TASK}.networking.masterPort": 2222,
            f"{TRAINER}.ports[master].containerPort": 2222,
            **{f"{at}.ports[master].{port}": 2222 for at in (MASTER, HEADLESS) for port in ("port", "targetPort")},
        },
    ),
    (
        "networking.rdmaEnabled",
        {"networking": {"rdmaEnabled": True}},
        {
            variable("NCCL_IB_DISABLE"): "0",
            f"{TRAINER}.resources.requests.{DEFAULTS.rdma_resource}": "1",
            f"{TRAINER}.resources.limits.{DEFAULTS.rdma_resource}": "1",
            f"{TRAINER}.securityContext.capabilities.add": ["IPC_LOCK"],
        },
    ),
    ("suspend", {"suspend": True}, {}),
    ("ttlSecondsAfterFinished", {"ttlSecondsAfterFinished": 60}, {}),
    ("failurePolicy.restartPolicy", {"failurePolicy": {"restartPolicy": "ExitCode"}}, {}),
    ("failurePolicy.backoffLimit", {"failurePolicy": {"backoffLimit": 9}}, {}),
    ("failurePolicy.activeDeadlineSeconds", {"failurePolicy": {"activeDeadlineSeconds": 60}}, {}),
]
NO_SIDECAR: JSON = {"monitoring": {"enabled": False}}
# What is written beside a job that has a sidecar, for which checkpoints are enough.
WATCHED: list[tuple[str, JSON, JSON]] = [
    ("monitoring.enabled", NO_SIDECAR, {}),
    ("progressDeadlineSeconds", {"progressDeadlineSeconds": 60}, {}),
    (
        "successPolicy.targetAccuracy",
        {"successPolicy": {"targetAccuracy": 0.9}},
        variables(SIDECAR, HOLDFAST_BEST_BY="accuracy"),
    ),
    ("successPolicy.earlyStoppingPatience", {"successPolicy": {"earlyStoppingPatience": 2}}, {}),
    ("numWorkers", {"numWorkers": 4}, {**WORKERS, variable("HOLDFAST_WORKERS", SIDECAR): "4"}),
    (
        "monitoring.metricsPort",
        {"monitoring": {"metricsPort": 9000}},
        {
            f"{TEMPLATE}.metadata.annotations.prometheus.io/scrape": "true",
            f"{TEMPLATE}.metadata.annotations.prometheus.io/port": "9000",
            f"{TEMPLATE}.metadata.annotations.prometheus.io/path": "/metrics",
            f"{TRAINER}.ports[metrics].name": "metrics",
            f"{TRAINER}.ports[metrics].containerPort": 9000,
            f"{MASTER}.ports[metrics].name": "metrics",
            f"{MASTER}.ports[metrics].port": 9000,
            f"{MASTER}.ports[metrics].targetPort": 9000,
            f"{MASTER}.ports[metrics].protocol": "TCP",
            **removed(f"{MASTER}.type", f"{MASTER}.externalName"),
            f"{MASTER}.selector.batch.kubernetes.io/job-name": "bert-training",
            f"{MASTER}.selector.batch.kubernetes.io/job-completion-index": "0",
            **variables(SIDECAR, METRICS_PORT="9000"),
        },
    ),
    (
        "env",
        {"env": [{"name": "CHECKPOINT_INTERVAL_SECONDS", "value": "9"}]},
        variables(CHECKPOINT_INTERVAL_SECONDS="9"),
    ),
    (
        "env",
        {"env": [{"name": "HOLDFAST_METRIC_NAMES", "value": "loss=my_loss"}]},
        {
            **variables(HOLDFAST_METRIC_NAMES="loss=my_loss"),
            **variables(SIDECAR, HOLDFAST_METRIC_NAMES="loss=my_loss"),
        },
    ),
    (
        "resources",
        {"resources": {"limits": {"memory": "64Gi"}}},
        {
            f"{TRAINER}.resources.limits.memory": "64Gi",
            f"{SIDECAR}.resources.requests.memory": "256Mi",
            f"{SIDECAR}.resources.limits.memory": "256Mi",
        },
    ),
    (
        "podTemplate.terminationGracePeriodSeconds",
        {"podTemplate": {"terminationGracePeriodSeconds": 45}},
        {f"{POD}.terminationGracePeriodSeconds": 45, variable("HOLDFAST_GRACE_SECONDS", SIDECAR): "45"},
    ),
]
# In tests of their own: what a TensorBoard is made of, and what there is without checkpoints.
ELSEWHERE = ("monitoring.tensorboardEnabled", "checkpoint.enabled")


@pytest.mark.parametrize(("field", "written", "expected"), PLAIN, ids=[case[0] for case in PLAIN])
def test_a_field_changes_just_what_it_is_for(field: str, written: JSON, expected: JSON) -> None:
    assert changed(written, since=NO_SIDECAR) == expected


@pytest.mark.parametrize(("field", "written", "expected"), WATCHED, ids=[case[0] for case in WATCHED])
def test_beside_a_sidecar_a_field_changes_just_what_it_is_for(field: str, written: JSON, expected: JSON) -> None:
    assert changed(written, since={"checkpoint": {}}) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"mlflowTrackingUri": "http://mlflow:5000"}, variables(MLFLOW_TRACKING_URI="http://mlflow:5000")),
        ({"wandbProject": "vision"}, variables(WANDB_PROJECT="vision")),
    ],
)
def test_a_tracker_is_a_variable(written: JSON, expected: JSON) -> None:
    assert changed({"monitoring": written}, since={"monitoring": {}}) == expected


def test_no_field_is_forgotten() -> None:
    told = {case[0] for case in (*PLAIN, *WATCHED, *TEMPLATES, *CHECKPOINTS, *STORES)}
    trackers = {"monitoring.mlflowTrackingUri", "monitoring.wandbProject"}
    assert told | trackers | set(ELSEWHERE) == set(_leaves(TrainingJobSpec))


def _leaves(struct: type[ApiStruct], path: str = "") -> Iterator[str]:
    """The fields of our own structs; Kubernetes' own types are passed on as they are."""
    for field in msgspec.structs.fields(struct):
        block = _block(field.type)
        if block is None:
            yield path + field.encode_name
        else:
            yield from _leaves(block, f"{path}{field.encode_name}.")


def _block(annotation: Any) -> type[ApiStruct] | None:
    """The struct of holdfast's own behind `Annotated[X | None, …]`."""
    parts = typing.get_args(annotation) or (annotation,)
    for part in parts:
        if isinstance(part, type) and issubclass(part, ApiStruct):
            return None if part.__module__.startswith(_package(AffinityField)) else part
    nested = [part for part in parts if typing.get_origin(part) is not None and not _is_collection(part)]
    return next((found for part in nested if (found := _block(part)) is not None), None)


def _is_collection(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (tuple, dict)


def _package(struct: type[ApiStruct]) -> str:
    return struct.__module__.rpartition(".")[0]
