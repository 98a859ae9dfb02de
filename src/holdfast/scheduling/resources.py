"""Resource amounts as exact integers, since they are summed over thousands of pods."""

from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import TypeAlias

from holdfast.api.core.objects import Container, PodSpec, Quantities, ResourceRequirements
from holdfast.api.scalars import InvalidQuantity, parse_quantity, round_up

# The smallest fraction of a quantity; a finer fraction is rounded up, as the API server does.
NANO = 10**9

# In billionths, by resource; the pod slot on the node is one of the resources.
Amounts: TypeAlias = Mapping[str, int]


@lru_cache(maxsize=1024)
def parse_nanos(text: str | int | float) -> int:
    """The amount in billionths."""
    return round_up(parse_quantity(text) * NANO)


def parse_nanos_or_zero(text: str | int | float) -> int:
    """As `parse_nanos`, for quantities written by others: 0 for an invalid or a negative quantity."""
    try:
        return max(0, parse_nanos(text))
    except InvalidQuantity:
        return 0


def plus(one: Amounts, other: Amounts) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def minus(one: Amounts, other: Amounts) -> dict[str, int]:
    return {name: one.get(name, 0) - other.get(name, 0) for name in {**one, **other}}


def elementwise_max(one: Amounts, other: Amounts) -> dict[str, int]:
    """The larger amount of each resource."""
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def how_many_fit(requests: Amounts, free: Amounts) -> int:
    """How often the requests fit into `free`; 0 for empty requests."""
    counts = [free.get(name, 0) // amount for name, amount in requests.items() if amount > 0]
    return max(0, min(counts, default=0))


# What a pod requests from a node.


def pod_requests(pod: PodSpec) -> dict[str, int]:
    """The larger of the sum over the containers and the peak during initialization.

    Init containers run one after the other; a sidecar keeps running beside later init containers and the containers.
    """
    running: Amounts = {}
    peak: Amounts = {}
    for container in pod.init_containers:
        requests = _container_requests(container)
        if container.is_sidecar:
            running = plus(running, requests)
            peak = elementwise_max(peak, running)
        else:
            peak = elementwise_max(peak, plus(running, requests))
    sum_of_containers = reduce(plus, map(_container_requests, pod.containers), running)
    # Requests at the level of the pod override the sum over its containers.
    total = {**elementwise_max(sum_of_containers, peak), **_effective_requests(pod.resources)}
    return {**plus(total, _parsed(pod.overhead)), "pods": NANO}


def sidecar_requests(pod: PodSpec) -> dict[str, int]:
    """The part of `pod_requests` that the sidecars take."""
    none: dict[str, int] = {}
    return reduce(
        plus, (_container_requests(container) for container in pod.init_containers if container.is_sidecar), none
    )


def _container_requests(container: Container) -> dict[str, int]:
    return _effective_requests(container.resources)


def _effective_requests(resources: ResourceRequirements) -> dict[str, int]:
    """The requests; a limit stands in for a missing request."""
    return _parsed({**resources.limits, **resources.requests})


def _parsed(amounts: Quantities) -> dict[str, int]:
    return {name: parse_nanos_or_zero(amount) for name, amount in amounts.items()}
