"""What a test sees of pods on real nodes."""

import json
from functools import partial
from typing import Any

from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually
from tests.operator.user import kubectl


async def pod_of(plane: ControlPlane, namespace: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await kubectl(plane, "get", f"pod/{name}", "-n", namespace, "-o", "json"))
    return found


async def until_phase(
    plane: ControlPlane, namespace: str, name: str, phase: str, *, within_s: float = 120.0
) -> dict[str, Any]:
    return await eventually(
        partial(pod_of, plane, namespace, name),
        lambda seen: seen["status"].get("phase") == phase,
        what=f"{name} {phase}",
        within_s=within_s,
    )


async def log_of(plane: ControlPlane, namespace: str, name: str, container: str) -> str:
    return await kubectl(plane, "logs", name, "-n", namespace, "-c", container)


async def only_pod(plane: ControlPlane, namespace: str, selector: str, *, not_on: str = "") -> dict[str, Any]:
    """The one pod of this selector that runs, on another node than that."""

    async def look() -> list[dict[str, Any]]:
        listing = json.loads(await kubectl(plane, "get", "pods", "-n", namespace, "-l", selector, "-o", "json"))
        running = [one for one in listing["items"] if one["status"].get("phase") == "Running"]
        return [one for one in running if one["spec"]["nodeName"] != not_on]

    (found,) = await eventually(look, lambda seen: len(seen) == 1, what=f"one pod of {selector} runs")
    return found
