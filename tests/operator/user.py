"""What a user does with kubectl, without holding up the test's own event loop."""

import asyncio
import json
from functools import partial
from typing import Any

from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually


async def kubectl(plane: ControlPlane, *args: str, **more: Any) -> str:
    """kubectl in a thread, so that the test's own event loop goes on."""
    return await asyncio.to_thread(partial(plane.kubectl, *args, **more))


async def apply(plane: ControlPlane, namespace: str, manifest: str) -> None:
    await kubectl(plane, "apply", "-n", namespace, "-f", "-", input=manifest)


async def status(plane: ControlPlane, namespace: str, name: str) -> dict[str, Any]:
    found = json.loads(await kubectl(plane, "get", f"tj/{name}", "-n", namespace, "-o", "json"))
    told: dict[str, Any] = found.get("status", {})
    return told


async def states(plane: ControlPlane, namespace: str) -> dict[str, str]:
    listing = json.loads(await kubectl(plane, "get", "tj", "-n", namespace, "-o", "json"))
    return {item["metadata"]["name"]: item.get("status", {}).get("state", "") for item in listing["items"]}


async def until_state(plane: ControlPlane, namespace: str, state: str, *names: str, within_s: float = 120.0) -> None:
    await eventually(
        partial(states, plane, namespace),
        lambda seen: all(seen.get(name) == state for name in names),
        what=f"{', '.join(names)} {state}",
        within_s=within_s,
    )
