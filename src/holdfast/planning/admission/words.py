"""Amounts and counts as people read them."""

from collections.abc import Iterable

from holdfast.planning.admission.shape import PodRequirements
from holdfast.planning.ledger import GPU
from holdfast.planning.placing.amounts import NANO, Amounts

PODS = "pods"
_FIRST = (GPU, "cpu", "memory", "ephemeral-storage")
_BYTES = {"memory": "memory", "ephemeral-storage": "ephemeral storage"}
_UNITS = (("Ti", 1024**4), ("Gi", 1024**3), ("Mi", 1024**2), ("Ki", 1024))


def by_importance(asked: Amounts) -> list[str]:
    """The resources, those first that people think of first; a place in the list of pods is the last."""
    return sorted(asked, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name == PODS, name))


def demand_text(shape: PodRequirements, workers: int, name: str = "") -> str:
    """What is asked for in all: needs 4 × 2 GPUs."""
    name = name or by_importance(shape.requests)[0]
    if name == PODS:
        return f"needs room for {quantity_text(PODS, workers * NANO)}"
    each = per_worker(shape, name)
    return f"needs {workers} × ({each})" if " + " in each else f"needs {workers} × {each}"


def per_worker(shape: PodRequirements, name: str) -> str:
    """The request of one worker: 2 GPUs; 1 CPU + 0.05 for the sidecar."""
    sidecar = shape.sidecar.get(name, 0)
    own = shape.requests[name] - sidecar
    if not sidecar:
        return quantity_text(name, own)
    total = f"{quantity_text(name, own)} + {number_text(name, sidecar)}" if own else quantity_text(name, sidecar)
    return f"{total} for the sidecar"


def quantity_text(name: str, nanos: int) -> str:
    """2 GPUs, 1 CPU, 32Gi of memory, 1 rdma/hca_shared_devices_a."""
    number = number_text(name, nanos)
    if name in _BYTES:
        return f"{number} of {_BYTES[name]}"
    one = {GPU: "GPU", "cpu": "CPU", PODS: "pod"}.get(name)
    return f"{number} {name}" if one is None else f"{number} {one}" if nanos == NANO else f"{number} {one}s"


def number_text(name: str, nanos: int, *, down: bool = False) -> str:
    """The number alone, with at most two decimals: rounded up, or down for what is there to be had."""
    unit, size = "", 1
    if name in _BYTES:
        unit, size = next((each for each in _UNITS if nanos >= each[1] * NANO), ("", 1))
    hundredth = size * NANO // 100
    hundredths = nanos // hundredth if down else -(-nanos // hundredth)
    return f"{hundredths / 100:.2f}".rstrip("0").rstrip(".") + unit


def nodes(count: int) -> str:
    return "no node" if count == 0 else "1 node" if count == 1 else f"{count} nodes"


def ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def join_words(items: Iterable[str]) -> str:
    """a, b and c."""
    *others, last = items
    return f"{', '.join(others)} and {last}" if others else last
