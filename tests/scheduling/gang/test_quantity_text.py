import pytest

from holdfast.scheduling.messages import (
    by_importance,
    demand_text,
    join_words,
    nodes,
    number_text,
    ordinal,
    quantity_text,
)
from holdfast.scheduling.resources import NANO, parse_nanos
from tests.scheduling.gang.gangs import shape


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("nvidia.com/gpu", "1", "1 GPU"),
        ("nvidia.com/gpu", "8", "8 GPUs"),
        ("cpu", "1", "1 CPU"),
        ("cpu", "500m", "0.5 CPUs"),
        ("cpu", "1001m", "1.01 CPUs"),
        ("memory", "32Gi", "32Gi of memory"),
        ("memory", "1536Mi", "1.5Gi of memory"),
        ("memory", "2Ti", "2Ti of memory"),
        ("memory", "512", "512 of memory"),
        ("memory", "64Ki", "64Ki of memory"),
        ("ephemeral-storage", "10Gi", "10Gi of ephemeral storage"),
        ("amd.com/gpu", "2", "2 amd.com/gpu"),
    ],
)
def test_an_amount_is_said_in_the_unit_that_people_use(name: str, text: str, expected: str) -> None:
    assert quantity_text(name, parse_nanos(text)) == expected


def test_what_is_asked_for_is_rounded_up_and_what_is_there_down() -> None:
    bit_less = parse_nanos("32Gi") - NANO
    assert (number_text("memory", bit_less), number_text("memory", bit_less, down=True)) == ("32Gi", "31.99Gi")
    assert (number_text("cpu", parse_nanos("1999m")), number_text("cpu", parse_nanos("1999m"), down=True)) == (
        "2",
        "1.99",
    )
    assert (number_text("cpu", parse_nanos("100")), number_text("memory", 0, down=True)) == ("100", "0")


def test_the_scarce_and_dear_comes_first_and_the_place_for_a_pod_last() -> None:
    asked = {"zzz": 1, "pods": 1, "memory": 1, "aaa": 1, "cpu": 1, "nvidia.com/gpu": 1}
    assert by_importance(asked) == ["nvidia.com/gpu", "cpu", "memory", "aaa", "zzz", "pods"]


def test_what_a_gang_needs_is_said_by_its_weightiest_resource_or_the_one_that_is_named() -> None:
    worker = shape(2, asks={"cpu": "4"})
    assert demand_text(worker, 4) == "needs 4 × 2 GPUs"
    assert demand_text(worker, 4, "cpu") == "needs 4 × 4 CPUs"
    assert demand_text(shape(), 4) == "needs room for 4 pods"
    assert demand_text(shape(), 1) == "needs room for 1 pod"


def test_counts_and_lists_read_as_language() -> None:
    assert [nodes(count) for count in (0, 1, 2)] == ["no node", "1 node", "2 nodes"]
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)] == [
        *("1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th")
    ]
    assert [join_words(items) for items in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
