"""What a pod takes of a machine."""

from functools import reduce

from holdfast.api.placing import Container, PodResources, Quantities, Resources
from holdfast.planning.placing.amounts import NANO, Amounts, elementwise_max, parse_nanos_or_zero, plus


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
