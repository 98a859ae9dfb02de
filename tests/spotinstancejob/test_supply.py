"""What is said of machines that have no room for their replica."""

import pytest

from holdfast.scheduling.ledger import GPU
from holdfast.scheduling.resources import NANO
from holdfast.spotinstancejob.supply import too_few_gpus, too_small

GI = 1024**3 * NANO


@pytest.mark.parametrize(
    ("resource", "asked", "offered", "text"),
    [
        ("memory", 24 * GI, 24 * GI - NANO, "its node has 23.99Gi of the 24Gi of memory that the replica asks for"),
        (GPU, 2 * NANO, NANO, "its node has 1 of the 2 GPUs that the replica asks for"),
        ("cpu", NANO, NANO // 2, "its node has 0.5 of the 1 CPU that the replica asks for"),
    ],
)
def test_a_machine_that_is_too_small_is_compared_with_the_replica(
    resource: str, asked: int, offered: int, text: str
) -> None:
    advice = "name a larger machine in the SpotInstanceVM, and delete this ProvisionedInstance"
    assert too_small(resource, asked, offered) == f"{text}: {advice}"


@pytest.mark.parametrize(
    ("asked", "offered", "text"),
    [
        (4, 1, "those of SpotInstanceVM t4 have 1 GPU, and a replica asks for 4"),
        (8, 4, "those of SpotInstanceVM t4 have 4 GPUs, and a replica asks for 8"),
        (1, 0, "those of SpotInstanceVM t4 have no GPU, and a replica asks for 1"),
    ],
)
def test_a_template_with_too_few_gpus_is_named(asked: int, offered: int, text: str) -> None:
    assert text in too_few_gpus("t4", asked, offered)
