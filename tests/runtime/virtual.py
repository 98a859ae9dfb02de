"""An event loop whose clock jumps to the next timer: minutes of waiting pass at once, and always in the same order."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

P = ParamSpec("P")


# Not zero: code that takes "never" for the beginning of time shall be seen.
BEGINNING_S = 1000.0


class _Jumping(selectors.DefaultSelector):
    now_s = BEGINNING_S

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everything waits and no timer is set: this would hang for ever")
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in virtual time."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


async def settled() -> None:
    """Let everything happen that happens without time passing."""
    for _ in range(200):
        await asyncio.sleep(0)


def now_s() -> float:
    return asyncio.get_running_loop().time()
