"""Which launchers take workers in and out while they run."""

from typing import Any

import pytest

from holdfast.trainingjob.objects.resources import is_elastic, min_workers
from tests.trainingjobs import training_job


@pytest.mark.parametrize(
    ("spec", "fewest"),
    [
        ({}, 0),
        ({"command": ["torchrun", "--nnodes=1:4", "train.py"]}, 1),
        ({"command": ["torchrun"], "args": ["--nnodes", "2:4", "train.py"]}, 2),
        ({"command": ["sh", "-c", "exec torchrun --nnodes=1:4 train.py"]}, 1),
        ({"command": ["sh", "-c", "torchrun --nnodes '1:4' train.py"]}, 1),
        ({"command": ["sh", "-c", 'torchrun --nnodes="2" train.py']}, 0),
        ({"command": ["torchrun", "--nnodes=0:4", "train.py"]}, 1),
        ({"command": ["torchrun", "--nnodes=4:4", "train.py"]}, 0),
        ({"command": ["torchrun", "--nnodes=4", "train.py"]}, 0),
        ({"command": ["torchrun", "--nnodes=1:4:8", "train.py"]}, 0),
        ({"command": ["torchrun", "--nnodes=:4", "train.py"]}, 0),
        ({"command": ["torchrun", f"--nnodes=1:{'9' * 5000}"]}, 0),
        ({"command": ["torchrun", "--nnodes"]}, 0),
        ({"command": ["train.py", "--my--nnodes=1:4"]}, 0),
        ({"env": [{"name": "PET_NNODES", "value": "1:4"}]}, 1),
        ({"env": [{"name": "PET_NNODES", "value": "4"}]}, 0),
        ({"env": [{"name": "PET_NNODES", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}]}, 0),
        ({"env": [{"name": "NNODES", "value": "1:4"}]}, 0),
        ({"args": ["--nnodes=4"], "env": [{"name": "PET_NNODES", "value": "1:4"}]}, 0),
        ({"args": ["--nnodes=4", "--nnodes=1:4"]}, 1),
        ({"args": ["--nnodes=1:4", "--nnodes=4"]}, 0),
    ],
)
def test_a_range_of_nodes_is_elastic(spec: dict[str, Any], fewest: int) -> None:
    assert min_workers(training_job(spec).spec) == fewest
    assert is_elastic(training_job(spec).spec) == (fewest > 0)
