from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.scalars import InvalidQuantity
from holdfast.scheduling.resources import (
    NANO,
    elementwise_max,
    how_many_fit,
    minus,
    parse_nanos,
    parse_nanos_or_zero,
    plus,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", Fraction(0)),
        ("2", Fraction(2)),
        (2, Fraction(2)),
        (0.5, Fraction(1, 2)),
        ("500m", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("1.5Gi", Fraction(3 * 2**29)),
        ("64Ki", Fraction(65536)),
        ("1k", Fraction(1000)),
        ("2e3", Fraction(2000)),
        ("1E", Fraction(10**18)),
        ("1E2", Fraction(100)),
        ("+3M", Fraction(3_000_000)),
        ("-1", Fraction(-1)),
        ("7u", Fraction(7, 10**6)),
        ("7n", Fraction(7, 10**9)),
    ],
)
def test_a_quantity_is_read_exactly(text: str | int | float, value: Fraction) -> None:
    assert parse_nanos(text) == value * NANO


def test_what_is_finer_than_a_billionth_is_rounded_up() -> None:
    assert parse_nanos("0.1n") == 1
    assert parse_nanos("1.0000000001") == NANO + 1


@pytest.mark.parametrize("text", ["", "much", "1 Gi", "1Gib", "1e", "--1", "1e1000000000", "0x10", "\u0661"])
def test_what_is_no_quantity_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidQuantity, match="such as 500m"):
        parse_nanos(text)


@given(st.integers(0, 10**12), st.sampled_from(["m", "", "k", "Ki", "Mi", "G", "Ti"]))
def test_amounts_add_up(number: int, unit: str) -> None:
    assert parse_nanos(f"{number}{unit}") == number * parse_nanos(f"1{unit}")


@pytest.mark.parametrize(
    ("text", "value"),
    [("2", 2 * NANO), ("many", 0), ("", 0), ("-4", 0), (-4, 0), (float("nan"), 0), ("1e999", 10**1008)],
)
def test_what_others_wrote_is_nothing_where_it_is_nonsense(text: str | int | float, value: int) -> None:
    assert parse_nanos_or_zero(text) == value


@pytest.mark.parametrize(
    ("asked", "free", "count"),
    [
        ({"gpu": 2}, {"gpu": 8}, 4),
        ({"gpu": 2}, {"gpu": 7}, 3),
        ({"gpu": 2, "cpu": 5}, {"gpu": 8, "cpu": 12}, 2),
        ({"gpu": 2}, {"cpu": 9}, 0),
        ({"gpu": 2}, {"gpu": -4}, 0),
        ({"gpu": 2, "cpu": 0}, {"gpu": 4}, 2),
    ],
)
def test_the_scarcest_resource_says_how_often_something_fits(
    asked: dict[str, int], free: dict[str, int], count: int
) -> None:
    assert how_many_fit(asked, free) == count


def test_amounts_of_different_things_are_added_subtracted_and_compared() -> None:
    one, other = {"cpu": 2, "gpu": 1}, {"cpu": 1, "memory": 5}
    assert plus(one, other) == {"cpu": 3, "gpu": 1, "memory": 5}
    assert minus(plus(one, other), other) == {"cpu": 2, "gpu": 1, "memory": 0}
    assert elementwise_max(one, other) == {"cpu": 2, "gpu": 1, "memory": 5}
