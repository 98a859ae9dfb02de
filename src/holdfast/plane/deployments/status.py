"""What a Deployment says of its pods."""

from collections.abc import Sequence
from datetime import datetime

from holdfast.plane.deployments.template import is_current
from holdfast.plane.jobs.standing import is_active, is_ready
from holdfast.plane.objects import Deployment, DeploymentCondition, DeploymentStatus, Pod
from holdfast.runtime.clocks import format_time

AVAILABLE = "Available"


def status(deployment: Deployment, pods: Sequence[Pod], now: datetime) -> DeploymentStatus:
    active, wanted = [pod for pod in pods if is_active(pod)], deployment.spec.replicas
    ready = sum(map(is_ready, active))
    return DeploymentStatus(
        observed_generation=deployment.metadata.generation,
        replicas=len(active),
        updated_replicas=sum(is_current(pod, deployment) for pod in active),
        ready_replicas=ready,
        available_replicas=ready,
        unavailable_replicas=max(wanted, len(active)) - ready,
        conditions=(_available(deployment, format_time(now), is_met=ready >= wanted),),
    )


def _available(deployment: Deployment, now: str, *, is_met: bool) -> DeploymentCondition:
    before = next((each for each in deployment.status.conditions if each.type == AVAILABLE), None)
    new = DeploymentCondition(
        type=AVAILABLE,
        status="True" if is_met else "False",
        reason="MinimumReplicasAvailable" if is_met else "MinimumReplicasUnavailable",
        message=f"Deployment {'has' if is_met else 'does not have'} minimum availability.",
        last_update_time=now,
        last_transition_time=now,
    )
    return before if before is not None and before.status == new.status else new
