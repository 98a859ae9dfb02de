"""Gangs for tables."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.api.core.objects import PodSpec
from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON
from holdfast.scheduling.constraints import PodRequirements, shape_of
from holdfast.scheduling.gang import AdmissionDecision, Gang, GangState, admit
from holdfast.scheduling.ledger import GPU, Ledger
from holdfast.times import format_time

NOW = datetime(2026, 4, 5, 12, tzinfo=UTC)
LABELS = {"training-job": "bert"}


def ago(seconds: float) -> str:
    return format_time(NOW - timedelta(seconds=seconds))


def shape(
    gpus: int = 0, *, labels: JSON = LABELS, asks: JSON | None = None, sidecar: JSON | None = None, **spec: Any
) -> PodRequirements:
    """A worker that asks for so many GPUs, and for `asks`; `sidecar` is what its sidecar requests."""
    requests = {**({GPU: gpus} if gpus else {}), **(asks or {})}
    beside = [{"restartPolicy": "Always", "resources": {"requests": sidecar}}] if sidecar else []
    body = {"initContainers": beside, "containers": [{"resources": {"requests": requests}}], **spec}
    return shape_of(msgspec.convert(body, PodSpec), labels, "ml")


def apart(*keys: str, **more: Any) -> JSON:
    """Required anti-affinity among the workers of one job."""
    selector = {"matchLabels": LABELS}
    terms = [{"topologyKey": key, "labelSelector": selector, **more} for key in keys]
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def gang(
    name: str = "bert",
    workers: int = 1,
    *,
    each: PodRequirements | None = None,
    gpus: int = 0,
    priority: int = 0,
    age_s: float = 60,
    standing: GangState = "waiting",
    unbound: int = 0,
    machines: tuple[str, ...] = (),
    restarting_s: float | None = None,
) -> Gang:
    return Gang(
        key=Key("ml", name),
        uid=name,
        workers=workers,
        shape=each or shape(gpus),
        priority=priority,
        created_at=ago(age_s),
        state=standing,
        unbound=unbound,
        nodes=machines,
        restarting_since=ago(restarting_s) if restarting_s is not None else "",
    )


def verdict(it: Gang, ledger: Ledger) -> AdmissionDecision:
    """Of one who is alone."""
    return admit([it], ledger, NOW)[it.uid]


def admitted(gangs: list[Gang], ledger: Ledger, starvation_timeout_s: float = 600) -> set[str]:
    return {uid for uid, each in admit(gangs, ledger, NOW, starvation_timeout_s).items() if each.admitted}
