"""The agents on real nodes, from their manifests: pods with the account, the rights and the limits that these give."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.control_plane.waiting import eventually
from tests.nodes import cgroups
from tests.nodes.images import HOLDFAST
from tests.nodes.lab import NODES, Lab
from tests.operator.user import kubectl

MANIFESTS = Path(__file__).parents[2] / "manifests" / "node"
SELECTOR = "app.kubernetes.io/name=holdfast-node"
JOURNAL = Path("holdfast-node")


async def install_agents(lab: Lab, *options: str) -> None:
    """As `kubectl apply -k manifests/node` does; a lab has no service network, so that the API server is named."""
    for name in yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())["resources"]:
        documents = [_adapted(lab, each, options) for each in yaml.safe_load_all((MANIFESTS / name).read_text())]
        manifest = yaml.safe_dump_all([each for each in documents if each])
        await kubectl(lab.plane, "apply", "--server-side", "-f", "-", input=manifest)
    await agents_ready(lab)


def _adapted(lab: Lab, document: dict[str, Any], options: tuple[str, ...]) -> dict[str, Any]:
    if document and document["kind"] == "DaemonSet":
        (container,) = document["spec"]["template"]["spec"]["containers"]
        container["image"] = HOLDFAST
        container["command"] += options
        server = {"KUBERNETES_SERVICE_HOST": lab.addresses.host, "KUBERNETES_SERVICE_PORT": lab.plane.ports.apiserver}
        container["env"] += [{"name": name, "value": str(value)} for name, value in server.items()]
    return document


async def agents_ready(lab: Lab, *nodes: str) -> None:
    """Wait until the agent of each of these nodes, or of all, is ready."""

    async def ready() -> set[str]:
        listing = json.loads(await kubectl(lab.plane, "get", "pods", "-A", "-l", SELECTOR, "-o", "json"))
        return {pod["spec"].get("nodeName", "") for pod in listing["items"] if _is_ready(pod)}

    wanted = set(nodes or NODES)
    try:
        await eventually(ready, lambda seen: wanted <= seen, what=f"agents of {', '.join(sorted(wanted))} are ready")
    except AssertionError as error:
        logs = [await agent_log(lab, node) for node in sorted(wanted)]
        raise AssertionError("\n".join([str(error), *logs])) from None


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def kill_agent(lab: Lab, node: str) -> None:
    """SIGKILL to the agent's process on this node, as the kernel does it when memory runs out."""
    _kill(lab.nodes[node].machine.groups.folders, lambda command: b"node" in command and _is_holdfast(command))


def kill_container(lab: Lab, node: str, pod_uid: str, word: bytes) -> None:
    """The same to the processes of a pod that have this word in their command lines."""
    groups = [group for folder in lab.nodes[node].machine.groups.folders for group in folder.rglob(f"*pod{pod_uid}")]
    _kill(groups, lambda command: any(word in part for part in command))


def _kill(groups: list[Path], is_meant: Callable[[list[bytes]], bool]) -> None:
    killed = False
    for pid in cgroups.processes(groups):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile
            continue
        if is_meant(command):
            os.kill(pid, signal.SIGKILL)
            killed = True
    assert killed, "there is no such process"


def _is_holdfast(command: list[bytes]) -> bool:
    return any(part.endswith(b"holdfast") for part in command)


async def agent_log(lab: Lab, node: str) -> str:
    """All that is left of it on the node's disk, also of processes that have ended."""
    listing = json.loads(await kubectl(lab.plane, "get", "pods", "-A", "-l", SELECTOR, "-o", "json"))
    (pod,) = [each["metadata"] for each in listing["items"] if each["spec"].get("nodeName") == node]
    logs = lab.nodes[node].machine.folder / "overlays" / "log" / "upper" / "pods"
    found = sorted(logs.glob(f"{pod['namespace']}_{pod['name']}_*/agent/*.log"), key=lambda path: int(path.stem))
    return "".join(path.read_text() for path in found)


def left_over(lab: Lab, node: str) -> list[str]:
    """Archives and journal entries on the node's disk."""
    disk = lab.nodes[node].machine.folder / "overlays" / "lib" / "upper" / JOURNAL
    journal = [path for path in disk.rglob("*") if path.is_file()] if disk.exists() else []
    archives = list(lab.nodes[node].checkpoints.iterdir()) if lab.nodes[node].checkpoints.exists() else []
    return sorted(path.name for path in (*archives, *journal))


async def nothing_left_over(lab: Lab, node: str) -> None:
    """Wait until it is so: a run is over before its journal entry is gone."""
    look = partial(asyncio.to_thread, left_over, lab, node)
    await eventually(look, lambda seen: not seen, what=f"nothing of a run is left on {node}")
