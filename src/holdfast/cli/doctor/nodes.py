"""What each node can do: save containers, and create containers from checkpoints."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite, nan
from typing import TypeAlias

from msgspec import Struct

from holdfast.api.checkpointbackup import TERMINAL_PHASES, CheckpointBackup
from holdfast.api.core.objects import Pod, PodCondition
from holdfast.api.meta import ApiStruct, Object
from holdfast.cli.doctor.findings import Finding, hidden, note, ok, problem
from holdfast.cluster.protocol import Resource
from holdfast.pods.failure import PREEMPTED
from holdfast.pods.restore.nodes import (
    CPU_FLAGS_ANNOTATION,
    RESTORE_LABEL,
    RESTORE_VALUE,
    RuntimeVersion,
    runtime_version,
)

# The kubelet's checkpoint endpoint: it exists since the first version, and is on by default since the second.
ENDPOINT_SINCE, ENDPOINT_DEFAULT_SINCE = (1, 25), (1, 30)
# Since when each runtime saves containers for the kubelet.
SAVES_SINCE = {"containerd": (2, 0), "cri-o": (1, 25)}
TRIAL = "`holdfast doctor --node NODE --registry REGISTRY` tries it"
# Failures of runs for which the node is to blame; a registry's or a pod's say nothing about CRIU.
NODE_FAULTS = (
    "KubeletUnauthorized",
    "KubeletForbidden",
    "KubeletUntrusted",
    "CheckpointDisabled",
    "CheckpointNotSupported",
    "CriuMissing",
    "CheckpointFailed",
    "CheckpointTimeout",
    "ArchiveRefused",
    "DiskFull",
)
SETTINGS = "docs/node-agent.md has the settings of kubelet, runtime and CRIU"
# A checkpoint takes about three times its size: CRIU's files, the archive, and the layer that is pushed.
DISK_FACTOR = 3
GIB = 2.0**30
# The agent's metrics have it.
METRICS_PORT = 9109
DISK_RIGHT = f"get pods/proxy, and an API server that reaches port {METRICS_PORT} of the node"


class _NodeInfo(ApiStruct, frozen=True, kw_only=True):
    kubelet_version: str = ""
    container_runtime_version: str = ""
    operating_system: str = "linux"


class _Status(ApiStruct, frozen=True, kw_only=True):
    conditions: tuple[PodCondition, ...] = ()
    node_info: _NodeInfo = _NodeInfo()


class ExaminedNode(Object, frozen=True, kw_only=True):
    """A Node, as far as it tells what its software can do."""

    status: _Status = _Status()

    def condition(self, kind: str) -> PodCondition | None:
        """The condition of that type, if it holds."""
        return next((each for each in self.status.conditions if each.type == kind and each.status == "True"), None)

    @property
    def is_linux(self) -> bool:
        return self.status.node_info.operating_system in ("", "linux")

    @property
    def runtime(self) -> RuntimeVersion:
        return runtime_version(self.status.node_info.container_runtime_version)


EXAMINED_NODES = Resource(group="", version="v1", kind="Node", plural="nodes", model=ExaminedNode, namespaced=False)


class NodeEvidence(Struct, frozen=True, kw_only=True):
    """What is known of one node beside its Node. None: nobody could look."""

    agent: Pod | None = None
    backups: tuple[CheckpointBackup, ...] | None = None
    free_bytes: float | None = None


Check: TypeAlias = Callable[["ExaminedNode", NodeEvidence], Iterator[Finding]]


def _presence(node: ExaminedNode, _: NodeEvidence) -> Iterator[Finding]:
    if node.condition("Ready") is None:
        yield note("the node is not ready")
    if (preempted := node.condition(PREEMPTED)) is not None:
        yield note(f"preemption notice: {preempted.message}")


def _agent(_: ExaminedNode, evidence: NodeEvidence) -> Iterator[Finding]:
    agent = evidence.agent
    if agent is None:
        return
    if agent.condition("Ready") is not None:
        yield ok("holdfast's agent runs")
    else:
        look = f"kubectl -n {agent.metadata.namespace} describe pod {agent.metadata.name}"
        yield problem("holdfast's agent is not ready", look)


def _kubelet(node: ExaminedNode, evidence: NodeEvidence) -> Iterator[Finding]:
    version = node.status.node_info.kubelet_version
    found = re.match(r"v(\d+)\.(\d+)", version)
    if found is None:
        yield note("the kubelet does not tell its version")
        return
    numbers = int(found[1]), int(found[2])
    if numbers >= ENDPOINT_DEFAULT_SINCE:
        yield ok(f"kubelet {version} has the checkpoint endpoint on by default")
    elif numbers >= ENDPOINT_SINCE:
        advice = "switch its feature gate ContainerCheckpoint on"
        yield _unusable(f"kubelet {version} has the checkpoint endpoint off by default", advice, evidence)
    else:
        yield _unusable(f"kubelet {version} has no checkpoint endpoint", "use 1.30 or newer", evidence)


def _runtime(node: ExaminedNode, evidence: NodeEvidence) -> Iterator[Finding]:
    runtime = node.runtime
    if not runtime.name:
        yield note("the node does not tell its container runtime")
        return
    since = SAVES_SINCE.get(runtime.name)
    if since is None or runtime.version < since:
        newer = " or ".join(f"{name} {'.'.join(map(str, least))}" for name, least in SAVES_SINCE.items())
        yield _unusable(f"{runtime} can't save containers", f"use {newer}, or newer", evidence)
    else:
        yield ok(f"{runtime} can save containers, with CRIU")


def _criu(_: ExaminedNode, evidence: NodeEvidence) -> Iterator[Finding]:
    """Nobody but the runtime sees CRIU: what was saved with it tells."""
    if evidence.agent is None or evidence.backups is None:
        return
    telling = (each for each in evidence.backups if not _failure(each) or _failure(each) in NODE_FAULTS)
    last = max(telling, key=_ended_at, default=None)
    if last is None or last.status is None:
        yield note("whether CRIU works is not known: nothing was saved here yet", f"{TRIAL}; {SETTINGS}")
    elif why := _failure(last):
        yield problem(f"the last container checkpoint failed ({why})", last.status.message or SETTINGS)
    else:
        yield ok("CRIU works: containers were saved here")


def _failure(backup: CheckpointBackup) -> str:
    """The reason of a run that failed; "" for one that has saved something."""
    status = backup.status
    if status is None or status.phase != "Failed":
        return ""
    return next((each.reason for each in status.conditions if each.type == "Failed"), "Failed")


def ended_runs(backups: Iterable[CheckpointBackup]) -> dict[str, tuple[CheckpointBackup, ...]]:
    """By node: the backups whose last run has saved containers there, or has failed to."""
    found: dict[str, list[CheckpointBackup]] = {}
    for backup in backups:
        status = backup.status
        if status is not None and status.mode == "container" and status.node_name and status.phase in TERMINAL_PHASES:
            found.setdefault(status.node_name, []).append(backup)
    return {node: tuple(each) for node, each in found.items()}


def _ended_at(backup: CheckpointBackup) -> str:
    return (backup.status.completion_time or backup.status.start_time or "") if backup.status is not None else ""


def _restore(node: ExaminedNode, _: NodeEvidence) -> Iterator[Finding]:
    runtime, is_labelled = node.runtime, node.metadata.labels.get(RESTORE_LABEL) == RESTORE_VALUE
    if not runtime.name:
        return
    known = runtime.known
    obstacle = known.obstacle(runtime.version) if known is not None else "it creates no containers from checkpoints"
    label = f"{RESTORE_LABEL}={RESTORE_VALUE}"
    if known is not None and not obstacle and is_labelled:
        yield ok(f"pods may be restored here: {runtime}, label {label}")
        if CPU_FLAGS_ANNOTATION not in node.metadata.annotations:
            yield note(
                "its CPU flags are not known, so that few checkpoints fit",
                "holdfast's agent writes them when it starts",
            )
    elif known is not None and not obstacle:
        yield note(
            f"no pod is restored here: {runtime} can, where it is switched on, and the node has no label {label}",
            f"set {known.switch}; then {TRIAL}, and labels the node",
        )
    elif is_labelled:
        yield problem(
            f"the label {label} promises what {runtime} can't keep: {obstacle}", f"remove the label, or {SETTINGS}"
        )
    else:
        yield note(f"no pod can be restored here with {runtime}: {obstacle}")


def _disk(node: ExaminedNode, evidence: NodeEvidence) -> Iterator[Finding]:
    if node.condition("DiskPressure") is not None:
        yield problem("its disk is nearly full (DiskPressure)", "free space: a checkpoint needs three times its size")
    if evidence.free_bytes is None:
        if evidence.agent is not None and evidence.agent.condition("Ready") is not None:
            yield hidden("the free disk for checkpoints", DISK_RIGHT)
        return
    sizes = [each.status.bytes for each in evidence.backups or () if each.status is not None]
    needed = DISK_FACTOR * max(sizes, default=0)
    free = f"{evidence.free_bytes / GIB:.1f} GiB are free for checkpoints"
    if evidence.free_bytes < needed:
        yield problem(
            f"{free}, and the largest one needs about {needed / GIB:.1f} GiB (three times its size)",
            "free space below the kubelet's folder checkpoints, or use a larger disk",
        )
    else:
        yield ok(free)


def _unusable(text: str, advice: str, evidence: NodeEvidence) -> Finding:
    """It matters where an agent waits for work; elsewhere it is as it is."""
    return problem(text, advice) if evidence.agent is not None else note(text, advice)


CHECKS: tuple[Check, ...] = (_presence, _agent, _kubelet, _runtime, _criu, _restore, _disk)


def free_bytes(metrics: str) -> float | None:
    """What the agent's metrics say is free where the kubelet writes archives."""
    found = re.search(r"^holdfast_node_checkpoints_free_bytes (\S+)$", metrics, re.MULTILINE)
    try:
        size = float(found[1]) if found is not None else nan
    except ValueError:
        return None
    return size if isfinite(size) else None


def agents_by_node(agents: Iterable[Pod]) -> Mapping[str, Pod]:
    """A pod that is ready counts before one that ends or is about to start."""
    ordered = sorted(agents, key=lambda pod: pod.condition("Ready") is not None)
    return {pod.spec.node_name: pod for pod in ordered if pod.spec.node_name and not pod.is_finished}
