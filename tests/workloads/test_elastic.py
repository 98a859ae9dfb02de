"""Which launchers take workers in and out while they run."""

from typing import Any

import pytest

from holdfast.workloads.trainingjob.elastic import is_elastic
from tests.trainingjobs import training_job


@pytest.mark.parametrize(
    ("spec", "elastic"),
    [
        ({}, False),
        ({"command": ["torchrun", "--nnodes=1:4", "train.py"]}, True),
        ({"command": ["torchrun"], "args": ["--nnodes", "2:4", "train.py"]}, True),
        ({"command": ["sh", "-c", "exec torchrun --nnodes=1:4 train.py"]}, True),
        ({"command": ["sh", "-c", "torchrun --nnodes '1:4' train.py"]}, True),
        ({"command": ["sh", "-c", 'torchrun --nnodes="2" train.py']}, False),
        ({"command": ["torchrun", "--nnodes=4:4", "train.py"]}, False),
        ({"command": ["torchrun", "--nnodes=4", "train.py"]}, False),
        ({"command": ["torchrun", "--nnodes=1:4:8", "train.py"]}, False),
        ({"command": ["torchrun", "--nnodes=:4", "train.py"]}, False),
        ({"command": ["torchrun", f"--nnodes=1:{'9' * 5000}"]}, False),
        ({"command": ["torchrun", "--nnodes"]}, False),
        ({"command": ["train.py", "--my--nnodes=1:4"]}, False),
        ({"env": [{"name": "PET_NNODES", "value": "1:4"}]}, True),
        ({"env": [{"name": "PET_NNODES", "value": "4"}]}, False),
        ({"env": [{"name": "PET_NNODES", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}]}, False),
        ({"env": [{"name": "NNODES", "value": "1:4"}]}, False),
        ({"args": ["--nnodes=4"], "env": [{"name": "PET_NNODES", "value": "1:4"}]}, False),
        ({"args": ["--nnodes=4", "--nnodes=1:4"]}, True),
        ({"args": ["--nnodes=1:4", "--nnodes=4"]}, False),
    ],
)
def test_a_range_of_nodes_is_elastic(spec: dict[str, Any], elastic: bool) -> None:
    assert is_elastic(training_job(spec).spec) is elastic
