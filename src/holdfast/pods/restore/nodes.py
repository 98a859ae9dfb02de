"""On which nodes a checkpoint may go on: those that are allowed to, with a processor that has all that it used."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from holdfast.api.core.objects import NodeSpec, PodCondition
from holdfast.api.meta import ApiStruct, Object
from holdfast.pods.restore.containerd import CONTAINERD
from holdfast.pods.restore.cpu import programs_flags
from holdfast.pods.restore.crio import CRIO
from holdfast.pods.restore.protocol import RestoreRuntime

# Set by whoever configured the node, or by `holdfast doctor --node`, which tries it.
RESTORE_LABEL = "holdfast.dev/restore"
RESTORE_VALUE = "true"
# Written by the node's agent when it starts, if it differs: the flags of its processors, as /proc/cpuinfo names them.
CPU_FLAGS_ANNOTATION = "holdfast.dev/cpu-flags"
HOSTNAME_LABEL = "kubernetes.io/hostname"

RUNTIMES: tuple[RestoreRuntime, ...] = (CONTAINERD, CRIO)
HOW_TO = (
    "docs/node-agent.md says how, and `holdfast doctor --node NODE --registry REGISTRY` tries it and sets the label"
)


class _NodeInfo(ApiStruct, frozen=True, kw_only=True):
    container_runtime_version: str = ""


class _Status(ApiStruct, frozen=True, kw_only=True):
    conditions: tuple[PodCondition, ...] = ()
    node_info: _NodeInfo = _NodeInfo()


class RestoreNode(Object, frozen=True, kw_only=True):
    """A Node as far as the choice needs it."""

    spec: NodeSpec = NodeSpec()
    status: _Status = _Status()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def hostname(self) -> str:
        return self.metadata.labels.get(HOSTNAME_LABEL, self.name)

    @property
    def is_ready(self) -> bool:
        return any(each.type == "Ready" and each.status == "True" for each in self.status.conditions)

    @property
    def may_restore(self) -> bool:
        return self.metadata.labels.get(RESTORE_LABEL) == RESTORE_VALUE

    @property
    def cpu_flags(self) -> frozenset[str] | None:
        """None where they are not known."""
        text = self.metadata.annotations.get(CPU_FLAGS_ANNOTATION)
        return None if text is None else frozenset(text.split())

    @property
    def runtime(self) -> "RuntimeVersion":
        return runtime_version(self.status.node_info.container_runtime_version)


class RuntimeVersion(NamedTuple):
    """containerd://2.2.9 of a node, or containerd 2.2.9 of an image."""

    name: str
    version: tuple[int, ...]

    @property
    def known(self) -> RestoreRuntime | None:
        return next((each for each in RUNTIMES if each.name == self.name), None)

    def __str__(self) -> str:
        return f"{self.name} {'.'.join(map(str, self.version))}".strip()


def runtime_version(text: str) -> RuntimeVersion:
    name, _, version = text.replace("://", " ").partition(" ")
    found = re.match(r"v?([0-9]{1,9}(?:\.[0-9]{1,9})*)(?![0-9])", version)
    return RuntimeVersion(name.lower(), tuple(map(int, found[1].split("."))) if found else ())


class RestorableImage(Struct, frozen=True, kw_only=True):
    """The checkpoint of one container. `image` is by digest; what its labels do not tell is empty."""

    container: str
    image: str
    base_image: str = ""
    runtime: str = ""
    cpu_flags: frozenset[str] = frozenset()

    @property
    def fetched_base_image(self) -> str:
        """The base image by its digest; empty for one that no registry has."""
        return self.base_image if "@sha256:" in self.base_image else ""


def restorable_image(container: str, image: str, labels: Mapping[str, str]) -> RestorableImage:
    """From the labels of the image, without their prefix."""
    return RestorableImage(
        container=container,
        image=image,
        base_image=labels.get("base-image", ""),
        runtime=labels.get("runtime", ""),
        cpu_flags=frozenset(labels.get("cpu-flags", "").split()),
    )


class NodeChoice(NamedTuple):
    """`fit`: the nodes in the order of their names; `unfit`: why each other one is none."""

    fit: tuple[RestoreNode, ...]
    unfit: dict[str, str]

    @property
    def message(self) -> str:
        """Why no node will do, and what to switch on."""
        if not self.unfit:
            return "the cluster has no nodes"
        labelled = {name: why for name, why in self.unfit.items() if why != NOT_ALLOWED}
        if not labelled:
            return f"no node has the label {RESTORE_LABEL}={RESTORE_VALUE}: {switch_on()}"
        reasons = "; ".join(f"{name}: {why}" for name, why in sorted(labelled.items()))
        return f"no node with the label {RESTORE_LABEL} can run it: {reasons}"


NOT_ALLOWED = f"it has not the label {RESTORE_LABEL}={RESTORE_VALUE}"


def switch_on() -> str:
    """What an administrator has to do, for every runtime."""
    settings = ", or ".join(f"with {each.name} set {each.switch}" for each in RUNTIMES)
    return f"restore is off unless it is switched on for a node: {settings}; {HOW_TO}"


def choose_nodes(nodes: Iterable[RestoreNode], images: Iterable[RestorableImage], wanted: str = "") -> NodeChoice:
    """wanted: the one node that the user names. Room and taints are the scheduler's to judge."""
    images = tuple(images)
    unfit: dict[str, str] = {}
    fit: list[RestoreNode] = []
    for node in sorted(nodes, key=lambda each: each.name):
        if wanted not in ("", node.name):
            continue
        if why := why_unfit(node, images):
            unfit[node.name] = why
        else:
            fit.append(node)
    if wanted and not fit and not unfit:
        unfit[wanted] = "there is no such node"
    return NodeChoice(tuple(fit), unfit)


def why_unfit(node: RestoreNode, images: Iterable[RestorableImage]) -> str:
    """Empty if the node will do for all of them."""
    return why_unable(node, images) if node.may_restore else NOT_ALLOWED


def why_unable(node: RestoreNode, images: Iterable[RestorableImage] = ()) -> str:
    """Whatever its label says."""
    if not node.is_ready:
        return "it is not ready"
    if node.spec.unschedulable:
        return "it is cordoned"
    runtime = node.runtime
    if runtime.known is None:
        return f"its runtime is {runtime}, which creates no containers from checkpoints"
    if obstacle := runtime.known.obstacle(runtime.version):
        return f"it runs {runtime}: {obstacle}"
    return next(filter(None, (_why_unfit(node, image) for image in images)), "")


def _why_unfit(node: RestoreNode, image: RestorableImage) -> str:
    made_by = runtime_version(image.runtime)
    if image.runtime and made_by.name != node.runtime.name:
        return f"it runs {node.runtime}, and container {image.container} was saved by {made_by}"
    needed = programs_flags(image.cpu_flags)
    if not needed:
        return ""
    if node.cpu_flags is None:
        return f"its CPU flags are not known: run holdfast's agent on it, which writes {CPU_FLAGS_ANNOTATION}"
    missing = sorted(needed - node.cpu_flags)
    if not missing:
        return ""
    more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    return f"its CPU has not {', '.join(missing[:5])}{more}, which container {image.container} may use"
