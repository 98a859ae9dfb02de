"""CRI-O: it creates a container from an image with its annotation, where an administrator allows it."""

from holdfast.pods.restore.protocol import Fault, Refusal

# Since these, restore is off unless it is set, and a checkpoint can't give itself rights by default (CVE-2026-92574).
OLDEST: dict[tuple[int, ...], int] = {(1, 34): 14, (1, 35): 9, (1, 36): 6}
SWITCH = 'container_level_enabled = "checkpoint_restore" in the table [crio.checkpoint_restore] of CRI-O\'s settings'
_NODE = ("checkpoint/restore support not available", "restore support not available", "restore is disabled")
_BASE_IMAGE = ("image not known", "invalid RootfsImageRef")
_IMAGE = (
    "failed to restore container",
    "expects following bind mounts defined",
    "signature validation is not supported for container restore",
    "checkpoint archive",
    "config.dump",
    "spec.dump",
    "criu failed",
    "CRIU restore failed",
)


class Crio:
    name = "cri-o"
    switch = SWITCH

    def obstacle(self, version: tuple[int, ...]) -> str:
        series = version[:2]
        if series > max(OLDEST):
            return ""
        if series not in OLDEST or version[:3] < (*series, OLDEST[series]):
            fixed = ", ".join(f"{'.'.join(map(str, each))}.{patch}" for each, patch in OLDEST.items())
            return f"this CRI-O lets a checkpoint take rights that its pod has not: use {fixed} or newer"
        return ""

    def refusal(self, message: str) -> Refusal | None:
        if any(words in message for words in _NODE):
            return Refusal(Fault.NODE, f"set {SWITCH}, and install CRIU 4.2 or newer")
        if any(words in message for words in _BASE_IMAGE):
            return Refusal(Fault.BASE_IMAGE, "bring the base image to the node first, with the pod's own pull secrets")
        if any(words in message for words in _IMAGE):
            return Refusal(
                Fault.IMAGE, "look at the runtime's words, and start from an older run, or from the beginning"
            )
        return None


CRIO = Crio()
