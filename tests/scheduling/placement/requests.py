"""Requests for tables, and a placement to ask."""

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from holdfast.api.core.objects import Node, Pod, PodSpec
from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON
from holdfast.scheduling.constraints import Request, gpus_in, shape_of
from holdfast.scheduling.ledger import GPU, RESERVATION_LABEL, Ledger
from holdfast.scheduling.placement import Placement
from tests.scheduling import nodes as machines
from tests.scheduling.gang.gangs import ago

TOLERATION = {"key": GPU, "operator": "Exists"}
ASSUMED_S = 100.0
PATIENCE_S = 600.0


def request(
    name: str = "w",
    gpus: int = 1,
    strategy: str = "leastLoaded",
    *,
    priority: int = 0,
    age_s: float = 60,
    avoided: tuple[str, ...] = (),
    asks: JSON | None = None,
    **spec: Any,
) -> Request:
    """A workload that asks for so many GPUs, and for `asks`; its uid is its name."""
    resources = {"requests": {GPU: str(gpus), **(asks or {})}}
    body = {"containers": [{"resources": resources}], "tolerations": [TOLERATION], **spec}
    return Request(
        key=Key("ml", name),
        uid=name,
        reservation_id=f"{name}-0",
        shape=shape_of(msgspec.convert(body, PodSpec), {}, "ml"),
        gpus=gpus,
        strategy=strategy,
        priority=priority,
        since=ago(age_s),
        avoided=avoided,
    )


def placement(ledger: Ledger, seed: int = 0) -> Placement:
    return Placement(ledger, Random(seed), reservation_timeout_s=ASSUMED_S, starvation_timeout_s=PATIENCE_S)


def placed(requests: Sequence[Request], ledger: Ledger, *, seed: int = 0) -> dict[str, str]:
    """Who gets which machine in one look at all of them."""
    place = placement(ledger, seed)
    for each in requests:
        place.enqueue(each, 0)
    given = place.run_pass(0).assigned
    return {each.uid: place.offered_node(each.uid) or "" for each in given}


def pod_of(it: Request, on: str, *, phase: str = "Running") -> Pod:
    """Its pod, as the scheduler has bound it."""
    pod = machines.pod(f"{it.uid}-pod", on, phase=phase, gpu=str(it.gpus))
    pod.metadata.labels[RESERVATION_LABEL] = it.reservation_id
    return pod


def gpu_nodes(*free: int, **facts: Any) -> list[Node]:
    """n-0, n-1 and so on, with so many GPUs each."""
    return [machines.node(f"n-{number}", gpus=gpus, **facts) for number, gpus in enumerate(free)]


def free_gpus(ledger: Ledger, name: str) -> int:
    return gpus_in(ledger.available(name))
