"""containerd: versions 2.1 to 2.3 create a container from a checkpoint image, where an administrator allows it."""

from holdfast.pods.restore.protocol import Fault, Refusal

# 2.1 got no release in which a checkpoint can't give itself rights that its pod has not (CVE-2026-95837).
OLDEST: dict[tuple[int, ...], int] = {(2, 2): 7, (2, 3): 4}
REMOVED = (2, 4)

SWITCH = (
    "enable_experimental_restore_via_create = true in the table "
    "[plugins.'io.containerd.cri.v1.runtime'] of containerd's settings"
)
# What CreateContainer and StartContainer say, in the order in which they are looked for.
_NODE = {
    "checkpoint restore via CreateContainer is disabled by configuration": f"set {SWITCH}",
    "criu support is disabled by configuration": "set enable_criu = true in the same table, and " + SWITCH,
    "criu binary not found": "install CRIU 4.2 or newer where containerd finds it",
    "failed to retrieve criu version": "install CRIU 4.2 or newer where containerd finds it",
    "checkpoint/restore requires at least CRIU": "install CRIU 4.2 or newer",
}
_BASE_IMAGE = ("failed to pull checkpoint base image", "failed to get checkpoint base image")
_IMAGE = (
    "failed to check if this is a checkpoint image",
    "during checkpoint import",
    "checkpoint archive",
    "refusing to restore checkpoint",
    "config.dump",
    "spec.dump",
    "status.dump",
    "restoring container log file",
    "failed to restore containerd task",
    "criu failed",
)


class Containerd:
    name = "containerd"
    switch = SWITCH

    def obstacle(self, version: tuple[int, ...]) -> str:
        series = version[:2]
        if series >= REMOVED:
            return "containerd 2.4 and newer create no containers from checkpoint images: use 2.3"
        if series not in OLDEST or version[:3] < (*series, OLDEST[series]):
            fixed = " or ".join(f"{'.'.join(map(str, each))}.{patch}" for each, patch in OLDEST.items())
            return f"this containerd lets a checkpoint take rights that its pod has not: use {fixed} or newer"
        return ""

    def refusal(self, message: str) -> Refusal | None:
        for words, advice in _NODE.items():
            if words in message:
                return Refusal(Fault.NODE, advice)
        if any(words in message for words in _BASE_IMAGE):
            return Refusal(
                Fault.BASE_IMAGE,
                "bring the base image to the node first, with the pod's own pull secrets: containerd fetches it "
                "without any",
            )
        if any(words in message for words in _IMAGE):
            return Refusal(
                Fault.IMAGE, "look at the runtime's words, and start from an older run, or from the beginning"
            )
        return None


CONTAINERD = Containerd()
