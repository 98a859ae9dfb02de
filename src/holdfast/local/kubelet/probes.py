"""Asking a container how it is, and telling it that it will be stopped."""

import asyncio
from collections.abc import Callable

import aiohttp
from msgspec import Struct

from holdfast.local.kubelet.context import own_interpreter
from holdfast.local.kubelet.objects import Container, Handler, HttpGetAction, Probe
from holdfast.local.kubelet.processes import Process


class Target(Struct, frozen=True):
    """A running container as a probe reaches it."""

    container: Container
    process: Process
    address: str
    http: aiohttp.ClientSession
    rewrite: Callable[[str], str]

    def port(self, port: int | str) -> int:
        """A port is named by number, or by what the container calls it."""
        if isinstance(port, int) or port.isdigit():
            return int(port)
        for one in self.container.ports:
            if one.name == port:
                return one.container_port
        raise ValueError(f"container {self.container.name} has no port named {port}")


async def run_handler(target: Target, handler: Handler, timeout_s: float) -> str:
    """Why the answer is no; "" for yes."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _ask(target, handler)
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except (OSError, aiohttp.ClientError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


async def _ask(target: Target, handler: Handler) -> str:
    if handler.exec:
        words = own_interpreter([target.rewrite(word) for word in handler.exec.command])
        code = await target.process.exec(words)
        return f"the command ended with {code}" if code else ""
    if handler.http_get:
        return await _http(target, handler.http_get)
    if handler.tcp_socket:
        host, port = handler.tcp_socket.host or target.address, target.port(handler.tcp_socket.port)
        _, writer = await asyncio.open_connection(host, port)
        writer.close()
        return ""
    if handler.sleep:
        await asyncio.sleep(handler.sleep.get("seconds", 0))
        return ""
    return "this machine asks by exec, httpGet and tcpSocket alone"


async def _http(target: Target, action: HttpGetAction) -> str:
    host, path = action.host or target.address, action.path if action.path.startswith("/") else f"/{action.path}"
    url = f"{action.scheme.lower()}://{host}:{target.port(action.port)}{path}"
    headers = {header.name: header.value for header in action.http_headers}
    # As a kubelet: any certificate will do, since the question is whether it answers and not who.
    async with target.http.get(url, headers=headers, ssl=False, allow_redirects=False) as response:
        return "" if 200 <= response.status < 400 else f"HTTP {response.status} from {url}"


async def probe_loop(target: Target, probe: Probe, *, passed: bool, tell: Callable[[bool, str], None]) -> None:
    """Ask on and on; `tell` hears of every change from what it `passed` before, and of a first failure, with why."""
    await asyncio.sleep(probe.initial_delay_seconds)
    successes = failures = 0
    while True:
        trouble = await run_handler(target, probe, probe.timeout_seconds)
        successes, failures = (0, failures + 1) if trouble else (successes + 1, 0)
        if not passed and successes >= probe.success_threshold:
            passed = True
            tell(True, "")
        elif failures >= probe.failure_threshold and (passed or failures == probe.failure_threshold):
            passed = False
            tell(False, trouble)
        await asyncio.sleep(probe.period_seconds)
