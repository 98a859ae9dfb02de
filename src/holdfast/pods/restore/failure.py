"""Why a container could not be created from its checkpoint: a failure of the restore, not of the application."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from holdfast.api.core.objects import ContainerStatus, Pod
from holdfast.pods.failure import START_ERRORS, found_image_unusable, sanitize, termination_text
from holdfast.pods.restore.nodes import RUNTIMES, RestorableImage
from holdfast.pods.restore.protocol import Fault, Refusal
from holdfast.pods.start_problems import IMAGE_REASONS, ORDINARY, image_problem
from holdfast.pods.template import SIDECAR_CONTAINER

# After so many nodes in vain an image is not tried again.
NODES_IN_VAIN = 2
# A kubelet fetches an image before it looks at anything else.
AFTER_THE_PULL = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff")


class CreationFailure(Struct, frozen=True, kw_only=True):
    """`fault` says whose it is, `message` is for people."""

    container: str
    node: str
    fault: Fault
    message: str
    may_pass: bool = False
    """The kubelet tries again: it may not have seen the pull secret of a new pod yet, or the registry is away."""


def creation_failure(pod: Pod, images: Iterable[RestorableImage]) -> CreationFailure | None:
    """None while the containers are being created, and when they run or ran."""
    restored = {each.container: each for each in images}
    for status in pod.status.container_statuses:
        if (image := restored.get(status.name)) and (said := _said(status)):
            return _failure(pod.spec.node_name, image, *said)
    return None


def sidecar_failure(pod: Pod) -> CreationFailure | None:
    """The same of a checkpoint that the sidecar was to bring back; None while it tries."""
    for status in pod.status.init_container_statuses:
        end = status.state.terminated or (None if status.ready else status.last_state.terminated)
        if status.name == SIDECAR_CONTAINER and end is not None and found_image_unusable(end):
            return CreationFailure(
                container=status.name,
                node=pod.spec.node_name,
                fault=Fault.IMAGE,
                message=sanitize(f"nothing can be resumed from the checkpoint image: {termination_text(end)}"),
            )
    return None


def _said(status: ContainerStatus) -> tuple[str, str] | None:
    """The reason and the message of a container that can't be created; None if nothing is said against it."""
    if (waiting := status.state.waiting) is not None:
        if waiting.reason in ORDINARY:
            return None
        before = status.last_state.terminated
        # In a back-off the kubelet repeats only that it waits.
        if waiting.reason == "CrashLoopBackOff":
            return (before.reason, before.message) if before and before.reason in START_ERRORS else None
        return waiting.reason, waiting.message
    end = status.state.terminated
    return (end.reason, end.message) if end is not None and end.reason in START_ERRORS else None


def _failure(node: str, image: RestorableImage, reason: str, message: str) -> CreationFailure:
    if reason in IMAGE_REASONS:
        why = _pull_problem(image.container, image.image, reason, message)
        return CreationFailure(
            container=image.container,
            node=node,
            fault=Fault.IMAGE if "not found" in message else Fault.NODE,
            may_pass=True,
            message=sanitize(
                f"the checkpoint of container {image.container} can't be fetched to {node}: {why}; the pod needs a "
                "pull secret for that registry"
            ),
        )
    refusal = next(filter(None, (each.refusal(message) for each in RUNTIMES)), None)
    refusal = refusal or Refusal(Fault.IMAGE, "look at the runtime's words")
    said = message or reason
    return CreationFailure(
        container=image.container,
        node=node,
        fault=refusal.fault,
        message=sanitize(
            f"container {image.container} can't be created from its checkpoint on {node} ({said}): {refusal.advice}"
        ),
    )


def _pull_problem(container: str, image: str, reason: str, message: str) -> str:
    """Without the advice for jobs."""
    return image_problem(container, image, reason, message).partition("; push it")[0]


def base_image_failure(pod: Pod) -> str:
    """Why a pod that brings base images does not; empty while it may, and when it has."""
    for status in pod.status.container_statuses:
        waiting = status.state.waiting
        if waiting is not None and waiting.reason in IMAGE_REASONS:
            why = _pull_problem(status.name, status.image, waiting.reason, waiting.message)
            return sanitize(
                f"the base image can't be brought to {pod.spec.node_name}: {why}; the restored pod needs a pull secret "
                "for it"
            )
    return ""


def has_base_images(pod: Pod) -> bool:
    """Whether all images are on the node: how the command ended, or whether it was there, does not matter."""
    return bool(pod.status.container_statuses) and all(map(_has_image, pod.status.container_statuses))


def _has_image(status: ContainerStatus) -> bool:
    waiting = status.state.waiting
    return waiting is None or waiting.reason in AFTER_THE_PULL


def unusable_image(failures: Mapping[str, CreationFailure]) -> str:
    """Why an image is not tried again; empty while it may be. failures: the last of each node.

    A node that is not set up for it says nothing about the image.
    """
    of_image = {node: each for node, each in sorted(failures.items()) if each.fault is not Fault.NODE}
    if len(of_image) < NODES_IN_VAIN:
        return ""
    last = list(of_image.values())[-1]
    return f"the image is unusable: it was tried in vain on {', '.join(of_image)}; {last.message}"
