"""What becomes of machines as time passes: made, running, taken back, deleted."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from typing import TypeAlias

from holdfast.providers.gcp.operations import PREEMPTED
from tests.providers.compute_engine.machine import FakeMachine, Pace
from tests.providers.compute_engine.operations import FakeOperation
from tests.providers.compute_engine.refusals import OperationFailure, preempted_while_starting

RUN_LIMIT = "compute.instances.deferredDelete"
HOST_ERROR = "compute.instances.hostError"

Hook: TypeAlias = Callable[[FakeMachine], Awaitable[None] | None]
BySystem: TypeAlias = Callable[[FakeMachine, str], FakeOperation]


async def _nothing(machine: FakeMachine) -> None:
    pass


class Hooks:
    """Called, and awaited, when something happens to a machine; so a test puts a computer behind it."""

    def __init__(self) -> None:
        self.on_running: Hook = _nothing
        """It has booted: its power is on, and it is RUNNING."""
        self.on_warned: Hook = _nothing
        """Its metadata server says TRUE for `preempted`."""
        self.on_soft_off: Hook = _nothing
        """The power-off signal: systemd begins to shut down."""
        self.on_power_off: Hook = _nothing
        """All that ran on it ends at once. Called exactly once for every machine that has been RUNNING."""


class Lives:
    """Runs beside the calls. `remove` takes a machine from the list, `by_system` notes an operation of Google's own."""

    def __init__(
        self,
        pace: Pace,
        now: Callable[[], datetime],
        *,
        remove: Callable[[FakeMachine], None],
        by_system: BySystem,
    ) -> None:
        self.pace = pace
        self.hooks = Hooks()
        self._now = now
        self._remove = remove
        self._by_system = by_system
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self, machine: FakeMachine, operation: FakeOperation, failure: Callable[[], OperationFailure | None]
    ) -> None:
        """failure: asked when the machine is to start."""
        self._spawn(machine, self._make(machine, operation, failure))

    def delete(self, machine: FakeMachine, operation: FakeOperation, failure: OperationFailure | None) -> None:
        machine.being_deleted = True
        self._spawn(machine, self._delete(machine, operation, failure))

    def preempt(self, machine: FakeMachine) -> None:
        """Google takes the machine back; one that is being made is not made."""
        if machine.preempted or machine.being_deleted:
            return
        machine.preempted = True
        machine.notify()
        if machine.status != "PROVISIONING":
            self._spawn(machine, self._take_back(machine))

    def fail_host(self, machine: FakeMachine) -> None:
        """The computer under it breaks: no notice, and no restart."""
        self._spawn(machine, self._break(machine))

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()):
                raise error

    async def _make(
        self, machine: FakeMachine, operation: FakeOperation, failure: Callable[[], OperationFailure | None]
    ) -> None:
        await asyncio.sleep(self.pace.insert_s)
        wrong = preempted_while_starting() if machine.preempted else failure()
        if wrong is not None:
            machine.status = "STOPPING"
            await asyncio.sleep(self.pace.fade_s)
            if machine.preempted:
                self._by_system(machine, PREEMPTED).end(self._now())
            self._end(machine)
            operation.end(self._now(), wrong)
            machine.made.set()
            return
        machine.status = "STAGING"
        machine.made.set()
        operation.end(self._now())
        await asyncio.sleep(self.pace.start_s)
        if machine.status != "STAGING":
            return
        machine.status = "RUNNING"
        machine.power = "on"
        await self._call(self.hooks.on_running, machine)
        if machine.max_run_s is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(machine.gone.wait(), machine.max_run_s)
            if not machine.gone.is_set() and not machine.being_deleted:
                self.delete(machine, self._by_system(machine, RUN_LIMIT), None)

    async def _delete(self, machine: FakeMachine, operation: FakeOperation, failure: OperationFailure | None) -> None:
        await machine.made.wait()  # what is being made is finished first
        if not machine.gone.is_set():
            before, machine.status = machine.status, "STOPPING"
            if failure is None:
                await self._power_off(machine)
            await asyncio.sleep(self.pace.delete_s)
            if failure is None:
                self._end(machine)
            else:
                machine.status, machine.being_deleted = before, False
        operation.end(self._now(), failure)

    async def _take_back(self, machine: FakeMachine) -> None:
        await self._call(self.hooks.on_warned, machine)
        await asyncio.sleep(machine.notice_s)
        await self._call(self.hooks.on_soft_off, machine)
        await asyncio.sleep(self.pace.soft_off_s)
        await self._power_off(machine)
        await asyncio.sleep(self.pace.seen_running_s)
        self._by_system(machine, PREEMPTED).end(self._now())
        machine.status = "STOPPING"
        await asyncio.sleep(self.pace.fade_s)
        self._end(machine)

    async def _break(self, machine: FakeMachine) -> None:
        await self._power_off(machine)
        self._by_system(machine, HOST_ERROR).end(self._now())
        machine.status = "TERMINATED"

    async def _power_off(self, machine: FakeMachine) -> None:
        if machine.power == "on":
            machine.power = "off"
            await self._call(self.hooks.on_power_off, machine)

    def _end(self, machine: FakeMachine) -> None:
        """Nothing happens to it any more."""
        if not machine.gone.is_set():
            machine.gone.set()
            machine.notify()
            self._remove(machine)

    async def _call(self, hook: Hook, machine: FakeMachine) -> None:
        result = hook(machine)
        if result is not None:
            await result

    def _spawn(self, machine: FakeMachine, life: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(life, name=f"life of {machine.name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """One that failed is kept, and raised at the end."""
        if task.cancelled() or task.exception() is None:
            self._tasks.discard(task)
