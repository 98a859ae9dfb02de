from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.quantities import NotAQuantity
from holdfast.plane.amounts import NANO, nanos


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
    assert nanos(text) == value * NANO


def test_what_is_finer_than_a_billionth_is_rounded_up() -> None:
    assert nanos("0.1n") == 1
    assert nanos("1.0000000001") == NANO + 1


@pytest.mark.parametrize("text", ["", "much", "1 Gi", "1Gib", "1e", "--1", "1e1000000000", "0x10", "\u0661"])
def test_what_is_no_quantity_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(NotAQuantity, match="such as 500m"):
        nanos(text)


@given(st.integers(0, 10**12), st.sampled_from(["m", "", "k", "Ki", "Mi", "G", "Ti"]))
def test_amounts_add_up(number: int, unit: str) -> None:
    assert nanos(f"{number}{unit}") == number * nanos(f"1{unit}")
