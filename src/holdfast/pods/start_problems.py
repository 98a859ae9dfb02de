"""Why pods have not started, in a sentence for the user."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from holdfast.api.core.objects import ContainerStatus, Pod
from holdfast.pods.failure import exit_text, sanitize, termination_text
from holdfast.pods.template import SIDECAR_CONTAINER

# Why an image can't be pulled, with the same message whether the kubelet pulls or backs off.

IMAGE_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
)
# During the back-off the kubelet puts its own text before the error of the last pull.
_BACK_OFF = re.compile(rf'^Back-off pulling image "[^"]*"(: )?(({"|".join(IMAGE_REASONS)}): )?')


# The name prefix of containers that holdfast adds.
_HOLDFAST_PREFIX = "holdfast-"


def image_problem(container: str, image: str, reason: str, message: str) -> str:
    name = f'image "{image}"'
    cause = _BACK_OFF.sub("", message).strip() or "the kubelet does not say why"
    if container.startswith(_HOLDFAST_PREFIX):
        return f"{name} can't be pulled: {cause}; it comes with the operator: tell those who run it"
    match reason:
        case "InvalidImageName":
            return f"{name} is not the name of an image ({cause}): suspend the job and correct spec.image"
        case "ErrImageNeverPull":
            return f"{name} is not on the node and podTemplate.imagePullPolicy is Never: load it there, or write Always"
        case _:
            return (
                f"{name} can't be pulled: {cause}; push it, or suspend the job and correct spec.image; "
                "a private registry needs podTemplate.imagePullSecrets"
            )


RESTORING = "the checkpoint to resume from is being brought back"
UNSCHEDULED = "the scheduler has not looked at them yet"
NOT_TAKEN_UP = "has not taken up its pod yet"
NOT_FINISHED = "has not finished yet"
MOUNTING = "is being pulled, or volumes are being mounted"
# A claim's volume is provisioned while the pod waits; the scheduler reports this for every pod with a new claim.
UNBOUND = "pod has unbound immediate PersistentVolumeClaims"
# The ordinary steps of a start: they indicate no problem.
ORDINARY = ("", "ContainerCreating", "PodInitializing")
# What why_waiting says when it knows no reason; what a container says may end alike.
TO_START = "workers to start"
ORDINARY_WAITS = (RESTORING, UNSCHEDULED, NOT_TAKEN_UP, NOT_FINISHED, MOUNTING, UNBOUND)


def why_waiting(
    pods: Iterable[Pod], missing: int, desired: int, events: Mapping[str, str] = {}, about_job: str = ""
) -> str:
    """What most of the missing workers wait for, as the scheduler and the kubelet report it.

    `events` is by pod uid what Events report about pods that show no problem, `about_job` why no pod is made.
    """
    pods = tuple(pods)
    reasons = Counter(problem for pod in pods if (problem := problem_of(pod))) or Counter(
        sanitize(events[pod.metadata.uid]) for pod in pods if is_starting(pod) and pod.metadata.uid in events
    )
    if about_job and missing_pods(pods, desired):
        reasons[sanitize(about_job)] += missing_pods(pods, desired)
    sentence = f"waiting for {missing} of {desired}"
    if not reasons:
        return f"{sentence} {TO_START}"
    # The most common reason; among equals the first by text, so that the message does not flicker.
    reason, _ = min(reasons.items(), key=lambda item: (-item[1], item[0]))
    return f"{sentence} workers: {reason}"


def is_ordinary(message: str) -> bool:
    """Whether the message of `why_waiting` reports only an ordinary step of the start."""
    return message.endswith(TO_START) or any(step in message for step in ORDINARY_WAITS)


def is_starting(pod: Pod) -> bool:
    return pod.status.phase == "Pending" and not pod.is_terminating


def missing_pods(pods: Iterable[Pod], desired: int) -> int:
    """How many workers have no pod; a failed or terminating pod is to be replaced."""
    return max(0, desired - sum(pod.status.phase != "Failed" and not pod.is_terminating for pod in pods))


def problem_of(pod: Pod) -> str:
    """What keeps the pod from running, as its own status reports; "" when the status names no problem."""
    if not is_starting(pod):
        return ""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return sanitize(condition.message or condition.reason)
    containers = (
        *(_init_problem(container) for container in pod.status.init_container_statuses),
        *(_waiting_problem(container, "container") for container in pod.status.container_statuses),
    )
    return sanitize(next(filter(None, containers), ""))


def startup_step(pod: Pod) -> str:
    """The startup step of a pod without a problem; worth reporting when the pod stays there."""
    if not pod.spec.node_name:
        return UNSCHEDULED
    containers = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    pending = next((each for each in containers if not each.ready and each.state.terminated is None), None)
    if pending is None:
        return f"the kubelet of {pod.spec.node_name} {NOT_TAKEN_UP}"
    if pending.state.waiting is None:
        if pending.name == SIDECAR_CONTAINER:
            return RESTORING
        return f"init container {pending.name} {NOT_FINISHED}"
    return f'image "{pending.image}" {MOUNTING}'


def creation_refused_text(message: str) -> str:
    return f"their pods are refused: {refused_because(message)}"


def refused_because(message: str) -> str:
    """Why the Job controller could not make a pod, without the pod's name, which differs with every retry."""
    cause = message.removeprefix("Error creating: ")
    if cause.startswith('pods "') and "is forbidden: " in cause:
        cause = cause.split("is forbidden: ", 1)[1]
    return cause


def _init_problem(container: ContainerStatus) -> str:
    # A sidecar that failed before it was ready is restarted again and again: its last end explains more than its state.
    end = container.state.terminated or (None if container.ready else container.last_state.terminated)
    if end is not None and (end.exit_code or end.signal):
        text = termination_text(end)
        return f"init container {container.name} {exit_text(end)}" + (f": {text}" if text else "")
    return _waiting_problem(container, "init container")


def _waiting_problem(container: ContainerStatus, what: str) -> str:
    waiting = container.state.waiting
    if waiting is None or waiting.reason in ORDINARY:
        return ""
    if waiting.reason in IMAGE_REASONS:
        return image_problem(container.name, container.image, waiting.reason, waiting.message)
    if waiting.reason == "CreateContainerConfigError":
        return (
            f"{what} {container.name} can't be configured: {waiting.message or 'the kubelet does not say why'}; "
            "it starts by itself when that is mended"
        )
    cause = f"{waiting.reason}: {waiting.message}" if waiting.message else waiting.reason
    return f"{what} {container.name} can't be started: {cause}"
