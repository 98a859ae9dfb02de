"""Why an image can't be pulled, in the same words whether the kubelet is trying or waits for its next try."""

import re

IMAGE_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
)
# While it waits the kubelet puts words of its own before those of the last try.
_BACK_OFF = re.compile(rf'^Back-off pulling image "[^"]*"(: )?(({"|".join(IMAGE_REASONS)}): )?')


# Containers that holdfast adds are named for it.
_OURS = "holdfast-"


def image_problem(container: str, image: str, reason: str, message: str) -> str:
    name = f'image "{image}"'
    cause = _BACK_OFF.sub("", message).strip() or "the kubelet does not say why"
    if container.startswith(_OURS):
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
