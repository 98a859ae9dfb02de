"""Amounts as exact whole numbers: what is counted for thousands of pods is counted with integers."""

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

from holdfast.api.quantities import InvalidQuantity, parse_quantity, round_up

# The smallest part that a quantity can have; what is finer is rounded up, as the API server does.
NANO = 10**9

# In billionths, by resource; the place in the machine's list of pods is one of them.
Amounts: TypeAlias = Mapping[str, int]


@lru_cache(maxsize=1024)
def parse_nanos(text: str | int | float) -> int:
    """The amount in billionths."""
    return round_up(parse_quantity(text) * NANO)


def parse_nanos_or_zero(text: str | int | float) -> int:
    """The same for what others have written: nothing where it is no amount, or less than nothing."""
    try:
        return max(0, parse_nanos(text))
    except InvalidQuantity:
        return 0


def plus(one: Amounts, other: Amounts) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def minus(one: Amounts, other: Amounts) -> dict[str, int]:
    return {name: one.get(name, 0) - other.get(name, 0) for name in {**one, **other}}


def elementwise_max(one: Amounts, other: Amounts) -> dict[str, int]:
    """The larger of the two, for each resource."""
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def how_many_fit(asked: Amounts, free: Amounts) -> int:
    """How often `free` holds what is asked for; asking for nothing is answered with nothing."""
    counts = [free.get(name, 0) // amount for name, amount in asked.items() if amount > 0]
    return max(0, min(counts, default=0))
