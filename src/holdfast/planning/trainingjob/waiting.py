"""Why a TrainingJob's workers have not started, in a sentence for its user."""

from collections import Counter
from collections.abc import Iterable

from holdfast.api.builtin import Pod


def why_waiting(pods: Iterable[Pod], missing: int, desired: int) -> str:
    """What most of the missing workers wait for, as the scheduler and the kubelet say it."""
    reasons = Counter(reason for pod in pods if (reason := _reason(pod)))
    sentence = f"waiting for {missing} of {desired} workers"
    if not reasons:
        return f"{sentence} to start"
    # The most common reason; among equals the first by text, so that the message does not flicker.
    reason, _ = min(reasons.items(), key=lambda item: (-item[1], item[0]))
    return f"{sentence}: {reason}"


def _reason(pod: Pod) -> str:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.message or condition.reason
    for container in pod.status.container_statuses:
        waiting = container.state.waiting
        # These two are the ordinary steps of a start and say nothing about a problem.
        if waiting is not None and waiting.reason not in ("", "ContainerCreating", "PodInitializing"):
            return f"{waiting.reason}: {waiting.message}" if waiting.message else waiting.reason
    return ""
