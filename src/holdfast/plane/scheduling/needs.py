"""What a pod takes of a machine."""

from collections.abc import Iterable, Mapping
from functools import reduce

from holdfast.plane.amounts import NANO, nanos
from holdfast.plane.objects import Container, Pod, Resources

# In billionths, by resource; the place in the machine's list of pods is one of them.
Amounts = Mapping[str, int]


def needs(pod: Pod) -> dict[str, int]:
    """The larger of what its containers take together and of what its start takes at any moment.

    Init containers run one after the other; a sidecar stays, beside the ones after it and beside the containers.
    """
    running: Amounts = {}
    peak: Amounts = {}
    for container in pod.spec.init_containers:
        asked = _asked(container)
        if container.is_sidecar:
            running = plus(running, asked)
            peak = _most(peak, running)
        else:
            peak = _most(peak, plus(running, asked))
    together = reduce(plus, map(_asked, pod.spec.containers), running)
    # What is asked for the pod as a whole goes before what its containers ask.
    total = {**_most(together, peak), **_requests(pod.spec.resources)}
    return {**plus(total, _parsed(pod.spec.overhead)), "pods": NANO}


def plus(one: Amounts, other: Amounts) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in _names(one, other)}


def minus(one: Amounts, other: Amounts) -> dict[str, int]:
    return {name: one.get(name, 0) - other.get(name, 0) for name in _names(one, other)}


def _most(one: Amounts, other: Amounts) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in _names(one, other)}


def _names(one: Amounts, other: Amounts) -> Iterable[str]:
    return {**one, **other}


def _asked(container: Container) -> dict[str, int]:
    return _requests(container.resources)


def _requests(resources: Resources) -> dict[str, int]:
    """A limit stands for a request that is not there."""
    return _parsed({**resources.limits, **resources.requests})


def _parsed(amounts: Mapping[str, str | int | float]) -> dict[str, int]:
    return {name: nanos(amount) for name, amount in amounts.items()}
