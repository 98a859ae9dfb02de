"""What a worker's containers ask for."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.trainingjob.objects.resources import gpus_per_worker, sidecar_resources, worker_resources
from tests.trainingjob.objects.family import DEFAULTS
from tests.trainingjobs import training_job

RDMA = DEFAULTS.rdma_resource


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        ({}, 1),
        ({"gpusPerWorker": 0}, 0),
        ({"gpusPerWorker": 4}, 4),
        ({"resources": {"limits": {"nvidia.com/gpu": "2"}}}, 2),
        ({"resources": {"requests": {"nvidia.com/gpu": 3}}}, 3),
        ({"resources": {"limits": {"cpu": "1"}}}, 1),
        ({"resources": {"limits": {"nvidia.com/gpu": "0"}}}, 0),
    ],
)
def test_gpus_are_what_is_written_else_one(spec: dict[str, Any], gpus: int) -> None:
    assert gpus_per_worker(training_job(spec).spec) == gpus


@pytest.mark.parametrize(
    ("spec", "resources"),
    [
        ({}, {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}),
        ({"gpusPerWorker": 0}, {}),
        (
            {"gpusPerWorker": 2, "resources": {"requests": {"cpu": "8"}}},
            {"requests": {"cpu": "8", "nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}},
        ),
        (
            {"resources": {"limits": {"nvidia.com/gpu": "2"}}},
            {"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}},
        ),
        (
            {"gpusPerWorker": 0, "resources": {"requests": {"nvidia.com/gpu": "0"}, "limits": {"memory": "1Gi"}}},
            {"limits": {"memory": "1Gi"}},
        ),
    ],
)
def test_gpus_are_asked_for_and_limited_alike(spec: dict[str, Any], resources: dict[str, Any]) -> None:
    assert worker_resources(training_job(spec), DEFAULTS) == resources


@pytest.mark.parametrize(
    ("written", "amount"),
    [({}, "1"), ({"limits": {RDMA: 2}}, 2), ({"requests": {RDMA: "4"}}, "4"), ({"limits": {"rdma/other": 1}}, "1")],
)
def test_an_rdma_device_is_added_unless_its_number_is_written(written: dict[str, Any], amount: int | str) -> None:
    job = training_job({"gpusPerWorker": 0, "networking": {"rdmaEnabled": True}, "resources": written})
    found = worker_resources(job, DEFAULTS)
    assert (found["requests"][RDMA], found["limits"][RDMA]) == (amount, amount)


def test_a_device_that_is_written_is_left_alone_without_rdma() -> None:
    written = {"limits": {RDMA: 2}}
    assert worker_resources(training_job({"gpusPerWorker": 0, "resources": written}), DEFAULTS) == written


LITTLE = {"cpu": "50m", "memory": "128Mi"}
BOUND = {"cpu": "500m", "memory": "256Mi"}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (None, {"requests": LITTLE}),
        ({"requests": {"cpu": "8", "memory": "1Gi"}}, {"requests": LITTLE}),
        ({"limits": {"nvidia.com/gpu": 1, RDMA: 1}}, {"requests": LITTLE}),
        ({"limits": {"cpu": "8", "memory": "1Gi"}}, {"requests": BOUND, "limits": BOUND}),
        (
            {"limits": {"memory": "1Gi"}},
            {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "256Mi"}},
        ),
        ({"requests": {"ephemeral-storage": "1Gi"}}, {"requests": {"ephemeral-storage": "128Mi", **LITTLE}}),
        (
            {"limits": {"ephemeral-storage": "1Gi"}},
            {"requests": {**LITTLE, "ephemeral-storage": "128Mi"}, "limits": {"ephemeral-storage": "128Mi"}},
        ),
    ],
)
def test_a_sidecar_has_limits_where_the_worker_has_them_and_no_device(
    written: dict[str, Any] | None, expected: dict[str, Any]
) -> None:
    job = training_job({"resources": written} if written else {})
    assert sidecar_resources(job, DEFAULTS) == expected
    assert sidecar_resources(job, structs.replace(DEFAULTS, sidecar_reserves=False)) == {}
