"""Asks the sidecar in each of our pods on the node to have its training save now.

Without the call a sidecar hears of the notice with the reply to its next report, seconds later: of 30 s that is much.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Literal

import aiohttp
import msgspec
import structlog
from msgspec import Struct, field

from holdfast.api.meta import Object
from holdfast.api.reports import SIDECAR_PORT, NodeNotice
from holdfast.cluster.protocol import Cluster, Resource
from holdfast.pods.template import SIDECAR_CONTAINER

UID_VARIABLE = "HOLDFAST_JOB_UID"
# What may be part of a path: anybody who may create pods chooses the variable.
UID = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
CALL_S = 3.0
CALLS_AT_ONCE = 16
# A sidecar that restarts just now listens again soon.
TRIES = 3
PAUSE_S = 1.0

CallResult = Literal["asked", "failed"]
log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class _Variable(Struct, frozen=True, kw_only=True):
    name: str
    value: str = ""


class _Container(Struct, frozen=True, kw_only=True):
    name: str
    env: tuple[_Variable, ...] = ()


class _Spec(Struct, frozen=True, kw_only=True, rename="camel"):
    init_containers: tuple[_Container, ...] = ()


class _Status(Struct, frozen=True, kw_only=True):
    phase: str = ""
    pod_ip: str = field(default="", name="podIP")


class NodePod(Object, frozen=True, kw_only=True):
    """A pod of this node, as far as its sidecar can be called."""

    spec: _Spec = _Spec()
    status: _Status = _Status()


NODE_PODS = Resource(group="", version="v1", kind="Pod", plural="pods", model=NodePod)


def sidecar_url(pod: NodePod, port: int = SIDECAR_PORT) -> str:
    """Where the pod's sidecar takes notices; "" for a pod without one, or one that does not run.

    Address and port are no choice of the pod's author, who could else make the agent call anything on the node.
    """
    if pod.status.phase != "Running" or not pod.status.pod_ip:
        return ""
    sidecar = next((each for each in pod.spec.init_containers if each.name == SIDECAR_CONTAINER), None)
    uid = next((each.value for each in sidecar.env if each.name == UID_VARIABLE), "") if sidecar is not None else ""
    if not UID.fullmatch(uid):
        return ""
    host = f"[{pod.status.pod_ip}]" if ":" in pod.status.pod_ip else pod.status.pod_ip
    return f"http://{host}:{port}/{uid}/notice"


class SidecarNotifier:
    def __init__(
        self,
        cluster: Cluster,
        node_name: str,
        session: aiohttp.ClientSession,
        *,
        on_call: Callable[[CallResult], None],
        port: int = SIDECAR_PORT,
    ) -> None:
        self._cluster = cluster
        self._node_name = node_name
        self._session = session
        self._on_call = on_call
        self._port = port

    async def ask_all(self, deadline_s: float) -> None:
        """Call every sidecar on the node, a few at once. A sidecar that can't be called is logged and counted."""
        listing = await self._cluster.list(NODE_PODS, fields=f"spec.nodeName={self._node_name}")
        body = msgspec.json.encode(NodeNotice(node=self._node_name, deadline=deadline_s))
        free = asyncio.Semaphore(CALLS_AT_ONCE)
        called = [(pod, url) for pod in listing.items if (url := sidecar_url(pod, self._port))]
        async with asyncio.TaskGroup() as calls:
            for pod, url in called:
                calls.create_task(self._ask(pod, url, body, free))

    async def _ask(self, pod: NodePod, url: str, body: bytes, free: asyncio.Semaphore) -> None:
        error = ""
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(PAUSE_S)
            async with free:
                outcome, error = await self._call(url, body)
            if not error:
                log.info("asked a sidecar for a save", pod=str(pod.metadata.key), answer=outcome)
                self._on_call("asked")
                return
        log.warning("a sidecar can't be asked for a save", pod=str(pod.metadata.key), reason=error)
        self._on_call("failed")

    async def _call(self, url: str, body: bytes) -> tuple[str, str]:
        """The sidecar's answer, or why there is none."""
        timeout = aiohttp.ClientTimeout(total=CALL_S)
        try:
            async with self._session.post(url, data=body, timeout=timeout, allow_redirects=False) as response:
                text = (await response.content.read(200)).decode(errors="replace").strip()
                return (text, "") if response.status == 202 else ("", f"it answers {response.status}")
        except TimeoutError:
            return "", f"no answer within {CALL_S:g} s"
        except (aiohttp.ClientError, OSError) as error:
            return "", type(error).__name__
