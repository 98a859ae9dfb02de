"""How long to wait before trying again."""

from random import Random


def backoff_s(failures: int, *, base_s: float, cap_s: float, random: Random) -> float:
    """A delay that doubles with every failure up to a cap; half of it is random, so that clients spread out."""
    doublings = min(max(failures - 1, 0), 62)  # every cap is reached long before; a float overflows at 1024
    return min(cap_s, base_s * 2.0**doublings) * random.uniform(0.5, 1.0)
