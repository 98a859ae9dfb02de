"""An agent that dies before or after one of its steps: from then on nothing of it does anything any more."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec import structs

from holdfast.node.parts import OpenRegistry, RunParts
from tests.checkpoints.memory import Died

# Reads leave nothing behind: an agent that dies in one is one that died after the step before.
READS = frozenset(("get", "list", "watch", "locate", "size", "check", "free_bytes", "work_free_bytes", "has_blob"))


class StepFuse:
    """Counts the steps, and kills the agent before or after one of them; None kills at none."""

    def __init__(self, step: int | None = None, *, before: bool = True) -> None:
        self._fatal = step
        self._before = before
        self.steps: list[str] = []
        self.is_dead = False

    def _must_live(self) -> None:
        if self.is_dead:
            raise Died

    def _is_fatal(self, *, before: bool) -> bool:
        self.is_dead = self.is_dead or (self._fatal == len(self.steps) - 1 and before == self._before)
        return self.is_dead

    def begin(self, name: str) -> None:
        self._must_live()
        self.steps.append(name)
        if self._is_fatal(before=True):
            raise Died

    def end(self) -> None:
        if self._is_fatal(before=False):
            raise Died


class Mortal:
    """A part of the agent whose every call is a step."""

    def __init__(self, part: Any, fuse: StepFuse, name: str) -> None:
        self._part = part
        self._fuse = fuse
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if not callable(found) or name in READS:
            return found
        if inspect.iscoroutinefunction(found):
            return self._awaited(found, name)
        return self._called(found, name)

    def _called(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self._fuse.begin(self._step(name, args))
            result = function(*args, **options)
            self._fuse.end()
            return result

        return call

    def _awaited(self, function: Callable[..., Awaitable[Any]], name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **options: Any) -> Any:
            self._fuse.begin(self._step(name, args))
            result = await function(*args, **options)
            self._fuse.end()
            return result

        return call

    def _step(self, name: str, args: tuple[Any, ...]) -> str:
        phase = args[2]["status"]["phase"] if name == "patch_status" else ""
        return " ".join(filter(None, (self._name, name, phase)))


def mortal(parts: RunParts, fuse: StepFuse) -> RunParts:
    """The same parts, all of which die together."""

    def opened(open_registry: OpenRegistry) -> Any:
        @asynccontextmanager
        async def mortal_registry(*args: Any, **options: Any) -> Any:
            async with open_registry(*args, **options) as client:
                yield Mortal(client, fuse, "registry")

        return mortal_registry

    return structs.replace(
        parts,
        cluster=Mortal(parts.cluster, fuse, "cluster"),
        kubelet=Mortal(parts.kubelet, fuse, "kubelet"),
        credentials=Mortal(parts.credentials, fuse, "credentials"),
        journal=Mortal(parts.journal, fuse, "journal"),
        archives=Mortal(parts.archives, fuse, "archives"),
        open_registry=opened(parts.open_registry),
    )


async def until_dead_or(fuse: StepFuse, running: "asyncio.Task[None]", ended: Awaitable[Any]) -> None:
    """Wait until the agent has died of its fuse, or what is waited for has come."""
    waiting = asyncio.ensure_future(ended)
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    await asyncio.wait([waiting])
