"""Amounts as Kubernetes writes them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.scalars import InvalidQuantity, parse_quantity, round_up


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        (2, 2),
        ("500m", Fraction(1, 2)),
        ("1u", Fraction(1, 10**6)),
        ("1n", Fraction(1, 10**9)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("1k", 1000),
        ("2M", 2 * 10**6),
        ("3G", 3 * 10**9),
        ("1T", 10**12),
        ("1P", 10**15),
        ("1E", 10**18),
        ("1Ki", 1024),
        ("1.5Gi", 3 * 2**29),
        ("1Ei", 2**60),
        ("2e3", 2000),
        ("1E3", 1000),
        ("12e-1", Fraction(6, 5)),
    ],
)
def test_every_unit_is_understood(text: str | int, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "m", "1 Gi", "1gi", "one", "1.2.3", "0x10", "1KiB"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidQuantity, match="write a number with a unit"):
        parse_quantity(text)


@given(st.fractions(min_value=0, max_value=10**9))
def test_whole_units_are_rounded_up(value: Fraction) -> None:
    assert value <= round_up(value) < value + 1
