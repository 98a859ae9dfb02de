"""Amounts as exact whole numbers: what is counted for thousands of pods is counted with integers."""

from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import TypeAlias

from holdfast.api.core.selectors import Container, PodResources, Quantities, Resources
from holdfast.api.scalars import InvalidQuantity, parse_quantity, round_up

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


# What a pod takes of a machine.


def pod_requests(pod: PodResources) -> dict[str, int]:
    """The larger of what its containers take together and of what its start takes at any moment.

    Init containers run one after the other; a sidecar stays, beside the ones after it and beside the containers.
    """
    running: Amounts = {}
    peak: Amounts = {}
    for container in pod.init_containers:
        asked = _asked(container)
        if container.is_sidecar:
            running = plus(running, asked)
            peak = elementwise_max(peak, running)
        else:
            peak = elementwise_max(peak, plus(running, asked))
    together = reduce(plus, map(_asked, pod.containers), running)
    # What is asked for the pod as a whole goes before what its containers ask.
    total = {**elementwise_max(together, peak), **_requests(pod.resources)}
    return {**plus(total, _parsed(pod.overhead)), "pods": NANO}


def sidecar_needs(pod: PodResources) -> dict[str, int]:
    """The part of `needs` that the sidecars take."""
    none: dict[str, int] = {}
    return reduce(plus, (_asked(each) for each in pod.init_containers if each.is_sidecar), none)


def _asked(container: Container) -> dict[str, int]:
    return _requests(container.resources)


def _requests(resources: Resources) -> dict[str, int]:
    """A limit stands for a request that is not there."""
    return _parsed({**resources.limits, **resources.requests})


def _parsed(amounts: Quantities) -> dict[str, int]:
    return {name: parse_nanos_or_zero(amount) for name, amount in amounts.items()}
