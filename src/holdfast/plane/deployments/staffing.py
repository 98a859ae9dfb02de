"""Which pods a Deployment makes, and which it takes away."""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from holdfast.plane.deployments.template import is_current
from holdfast.plane.jobs.standing import finished_at, is_active, is_ready
from holdfast.plane.objects import Deployment, Pod

# A pod that has ended keeps its place for so long: one that can't run must not be made again and again without a pause.
REST_S = 10.0


class ScalePlan(Struct, frozen=True, kw_only=True):
    create: int
    stop: tuple[Pod, ...]
    again_s: float | None


def plan_scale(deployment: Deployment, pods: Sequence[Pod], now: datetime) -> ScalePlan:
    """A changed template ends the old pods before it makes new ones, whatever the strategy says."""
    current = [pod for pod in pods if is_current(pod, deployment)]
    active = sorted(filter(is_active, current), key=is_ready)
    rests = {pod.metadata.uid: _rest_s(pod, now) for pod in current if pod.has_ended and not pod.is_terminating}
    resting = {uid: left_s for uid, left_s in rests.items() if left_s > 0}
    surplus = active[: max(0, len(active) - deployment.spec.replicas)]
    old = [pod for pod in pods if not is_current(pod, deployment)]
    over = [pod for pod in current if pod.has_ended and pod.metadata.uid not in resting]
    has_left = all(pod.has_ended for pod in old)
    return ScalePlan(
        create=max(0, deployment.spec.replicas - len(active) - len(resting)) if has_left else 0,
        stop=tuple(pod for pod in (*old, *surplus, *over) if not pod.is_terminating),
        again_s=min(resting.values(), default=None),
    )


def _rest_s(pod: Pod, now: datetime) -> float:
    return REST_S - (now - finished_at(pod)).total_seconds()
