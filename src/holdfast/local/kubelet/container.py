"""The lifecycle of one container: start, probes, restarts, stop."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import structlog
from msgspec import Struct
from msgspec.structs import replace

from holdfast.cluster.errors import ClusterError
from holdfast.local.kubelet import processes
from holdfast.local.kubelet.context import ContainerContext, own_interpreter
from holdfast.local.kubelet.launch import LaunchPlan, prepare
from holdfast.local.kubelet.logs import termination_message
from holdfast.local.kubelet.objects import Handler, HttpGetAction, Probe, RetryLater, RunnableContainer
from holdfast.local.kubelet.pod_status import (
    HEALTHY_AFTER_S,
    ContainerSnapshot,
    Running,
    State,
    Terminated,
    Waiting,
    restart_delay_s,
    restarts_again,
)
from holdfast.local.kubelet.processes import Exit, Process, StartError

# Probes and lifecycle hooks of containers.


class Target(Struct, frozen=True):
    """A running container as a probe reaches it."""

    container: RunnableContainer
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
    """Probe periodically; `on_change` gets every change of `passed` and the first failure, with the reason."""
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


log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class GracePeriod:
    """The time that a pod or container has to stop. A grace period can become shorter while it runs, never longer."""

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._changed = asyncio.Event()

    @property
    def began(self) -> bool:
        return self._deadline is not None

    def begin(self, seconds: float) -> None:
        """Start the countdown now; an earlier deadline stays."""
        deadline = asyncio.get_running_loop().time() + seconds
        if self._deadline is None or deadline < self._deadline:
            self._deadline = deadline
            self._changed.set()

    async def wait_begun(self) -> None:
        """Wait until the grace period has begun."""
        while not self.began:
            await self._changed.wait()

    async def wait_expired(self) -> None:
        """Wait until the grace period has begun and has expired."""
        while (left := self.left) is None or left > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                continue

    @property
    def left(self) -> float | None:
        return None if self._deadline is None else self._deadline - asyncio.get_running_loop().time()


async def wait_first(*awaitables: Awaitable[object]) -> None:
    """Wait until one is done. Coroutines are cancelled then; futures belong to the caller and continue."""
    tasks = [asyncio.ensure_future(each) for each in awaitables]
    own = [task for task, awaitable in zip(tasks, awaitables, strict=True) if task is not awaitable]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(own)


@asynccontextmanager
async def background_task(coroutine: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run the coroutine until the block ends."""
    task = asyncio.ensure_future(coroutine)
    try:
        yield
    finally:
        await _end([task])


async def _end(tasks: "Sequence[asyncio.Future[object]]") -> None:
    """Cancel the tasks that still run; raise the error of a task that had already failed."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


RETRY_S = 1.0
CANNOT_START = 128


class ContainerRun:
    """`policy` is the restart policy; `changed` is called after every change of `fact`."""

    def __init__(
        self, spec: RunnableContainer, *, policy: str, is_init: bool, grace_s: float, changed: Callable[[], None]
    ) -> None:
        self.spec = spec
        self.snapshot = ContainerSnapshot(name=spec.name, image=spec.image, is_sidecar=is_init and spec.is_sidecar)
        self._policy = policy
        self._grace_s = grace_s
        self._is_init = is_init
        self._changed = changed
        self._container_grace = GracePeriod()  # for the whole container: no further start
        self._process_grace = GracePeriod()  # for the process that runs now
        self._failure = ""
        self.has_started = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        return self._container_grace.began

    def set_waiting(self, reason: str, message: str = "") -> None:
        self._set(state=Waiting(reason, message))

    def set_rejected(self, message: str, now: str) -> None:
        """The container will never start."""
        self._set(
            state=Terminated(exit_code=CANNOT_START, reason="ContainerCannotRun", message=message, finished_at=now)
        )

    def stop(self, grace_s: float) -> None:
        """Let the running process end within `grace_s` and start no further process."""
        self._container_grace.begin(grace_s)
        self._process_grace.begin(grace_s)

    async def run(self, context: ContainerContext) -> None:
        """Run until the container has ended for good; the last state in `fact` is the result."""
        loop = asyncio.get_running_loop()
        crashes = 0
        while not self._container_grace.began:
            began = loop.time()
            end = await self._run_once(context)
            if end is None:
                return
            if self._container_grace.began or not restarts_again(self._policy, end.exit_code):
                self._set(state=end, started=False, ready=self._is_init and end.exit_code == 0)
                return
            crashes = 1 if loop.time() - began >= HEALTHY_AFTER_S else crashes + 1
            await self._back_off(end, restart_delay_s(crashes))
            self._set(restarts=self.snapshot.restarts + 1)

    async def _back_off(self, end: Terminated, delay_s: float) -> None:
        self._set(state=end, last=end, started=False, ready=False)
        if delay_s:
            self.set_waiting(
                "CrashLoopBackOff", f"back-off {delay_s:.0f}s restarting failed container {self.spec.name}"
            )
            await self._pause(delay_s)

    async def _run_once(self, context: ContainerContext) -> Terminated | None:
        """Run the container once; None when the container was stopped before the start."""
        plan = await self._wait_for_plan(context)
        if plan is None:
            return None
        try:
            return await self._start(plan, context)
        finally:
            if plan.cgroup:
                plan.cgroup.remove()

    async def _start(self, plan: LaunchPlan, context: ContainerContext) -> Terminated:
        started_at = context.host.time()
        self._process_grace, self._failure = GracePeriod(), ""
        self.has_started.clear()
        try:
            process = await Process.start(
                plan.launch, marker=context.marker, record=lambda each: processes.record_process(context.folder, each)
            )
        except (StartError, OSError) as error:
            now = context.host.time()
            return Terminated(
                exit_code=CANNOT_START, reason="StartError", message=str(error), started_at=started_at, finished_at=now
            )
        try:
            exit_ = await self._supervise(process, plan, context)
        finally:
            await process.close()
        await self._kill_orphans(exit_, context)
        return self._terminated(exit_, plan, started_at, context.host.time())

    async def _wait_for_plan(self, context: ContainerContext) -> LaunchPlan | None:
        while not self._container_grace.began:
            try:
                return await prepare(self.spec, context, self.snapshot.restarts)
            except RetryLater as problem:
                self.set_waiting(problem.reason, str(problem))
            except (ClusterError, OSError) as problem:
                self.set_waiting("CreateContainerError", str(problem))
            await self._pause(RETRY_S)
        return None

    async def _supervise(self, process: Process, plan: LaunchPlan, context: ContainerContext) -> Exit:
        target = Target(self.spec, process, context.pod_context.pod_ip, context.host.http, plan.rewrite)
        self._set(state=Running(context.host.time()))
        if self.spec.startup_probe is None:
            self._start_passed()
        if (left := self._container_grace.left) is not None:  # the container was stopped during its start
            self._process_grace.begin(left)
        async with background_task(self._probe(target)):
            ended = asyncio.ensure_future(process.wait())
            await wait_first(ended, self._process_grace.wait_begun())
            if not ended.done():
                await self._end(target, ended)
            return await ended

    async def _end(self, target: Target, ended: "asyncio.Future[Exit]") -> None:
        """preStop, then SIGTERM, then SIGKILL for every process when the grace period has expired."""
        if hook := self.spec.lifecycle.pre_stop:
            await wait_first(
                ended, self._process_grace.wait_expired(), run_handler(target, hook, timeout_s=float("inf"))
            )
        target.process.signal(signal.SIGTERM)
        await wait_first(ended, self._process_grace.wait_expired())
        if not ended.done():
            await target.process.force()

    async def _probe(self, target: Target) -> None:
        spec = self.spec
        if (hook := spec.lifecycle.post_start) and (problem := await run_handler(target, hook, timeout_s=float("inf"))):
            self._kill_unhealthy(f"postStart hook failed: {problem}", None)
        if spec.startup_probe:
            async with background_task(
                probe_loop(target, spec.startup_probe, passed=False, on_change=self._on_startup_probe)
            ):
                await self.has_started.wait()
        async with asyncio.TaskGroup() as group:
            if spec.liveness_probe:
                group.create_task(
                    probe_loop(target, spec.liveness_probe, passed=True, on_change=self._on_liveness_probe)
                )
            if spec.readiness_probe:
                group.create_task(
                    probe_loop(target, spec.readiness_probe, passed=False, on_change=self._on_readiness_probe)
                )

    def _on_startup_probe(self, passed: bool, reason: str) -> None:
        if passed:
            self._start_passed()
        else:
            self._failed("startup", self.spec.startup_probe, reason)

    def _on_liveness_probe(self, passed: bool, reason: str) -> None:
        if not passed:
            self._failed("liveness", self.spec.liveness_probe, reason)

    def _on_readiness_probe(self, passed: bool, reason: str) -> None:
        self._set(ready=passed)

    def _start_passed(self) -> None:
        self._set(started=True, ready=self.spec.readiness_probe is None)
        self.has_started.set()

    def _failed(self, kind: str, probe: Probe | None, reason: str) -> None:
        assert probe is not None
        failure = f"{kind} probe failed {probe.failure_threshold} times: {reason}"
        self._kill_unhealthy(failure, probe.termination_grace_period_seconds)

    def _kill_unhealthy(self, failure: str, grace_s: float | None) -> None:
        """Stop the process; the restart policy decides whether a new process starts."""
        self._failure = failure
        log.info("container stopped", container=self.spec.name, reason=failure)
        self._process_grace.begin(self._grace_s if grace_s is None else grace_s)

    async def _kill_orphans(self, exit_: Exit, context: ContainerContext) -> None:
        """End processes of the pod that survived because their supervisor was killed."""
        if exit_.message or exit_.left:
            await processes.end_of_pod(context.folder, context.host.identity, context.uid)

    def _terminated(self, exit_: Exit, plan: LaunchPlan, started_at: str, now: str) -> Terminated:
        spec, launch = self.spec, plan.launch
        message = termination_message(plan.message_file, launch.log, spec.termination_message_policy, exit_.code)
        reason = "Completed" if exit_.code == 0 else "Error"
        if exit_.code and plan.cgroup and plan.cgroup.oom_killed:
            reason = "OOMKilled"
        return Terminated(
            exit_code=exit_.code,
            signal=exit_.signal,
            reason=reason,
            message=message or self._failure or exit_.message,
            started_at=started_at,
            finished_at=now,
        )

    async def _pause(self, seconds: float) -> None:
        await wait_first(self._container_grace.wait_begun(), asyncio.sleep(seconds))

    def _set(self, **changes: State | bool | int | None) -> None:
        fact = replace(self.snapshot, **changes)
        if fact != self.snapshot:
            self.snapshot = fact
            self._changed()
