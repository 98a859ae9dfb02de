"""Amounts as exact whole numbers: what is counted for thousands of pods is counted with integers."""

from functools import lru_cache

from holdfast.api.quantities import amount, whole

# The smallest part that a quantity can have; what is finer is rounded up, as the API server does.
NANO = 10**9


@lru_cache(maxsize=1024)
def nanos(text: str | int | float) -> int:
    """The amount in billionths."""
    return whole(amount(text) * NANO)
