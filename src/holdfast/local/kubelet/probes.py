"""Probes and lifecycle hooks of containers."""

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
        """The port number for a number or for the name of a container port."""
        if isinstance(port, int) or port.isdigit():
            return int(port)
        for each in self.container.ports:
            if each.name == port:
                return each.container_port
        raise ValueError(f"container {self.container.name} has no port named {port}")


async def run_handler(target: Target, handler: Handler, timeout_s: float) -> str:
    """Run a probe or hook once; returns the reason of a failure, "" on success."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _run(target, handler)
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except (OSError, aiohttp.ClientError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


async def _run(target: Target, handler: Handler) -> str:
    if handler.exec:
        argv = own_interpreter([target.rewrite(argument) for argument in handler.exec.command])
        code = await target.process.exec(argv)
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
    # As a kubelet does: accept any certificate, since the probe checks the health of the server, not its identity.
    async with target.http.get(url, headers=headers, ssl=False, allow_redirects=False) as response:
        return "" if 200 <= response.status < 400 else f"HTTP {response.status} from {url}"


async def probe_loop(target: Target, probe: Probe, *, passed: bool, on_change: Callable[[bool, str], None]) -> None:
    """Probe periodically; `tell` gets every change of `passed` and the first failure, with the reason."""
    await asyncio.sleep(probe.initial_delay_seconds)
    successes = failures = 0
    while True:
        problem = await run_handler(target, probe, probe.timeout_seconds)
        successes, failures = (0, failures + 1) if problem else (successes + 1, 0)
        if not passed and successes >= probe.success_threshold:
            passed = True
            on_change(True, "")
        elif failures >= probe.failure_threshold and (passed or failures == probe.failure_threshold):
            passed = False
            on_change(False, problem)
        await asyncio.sleep(probe.period_seconds)
