"""An event loop whose clock jumps to the next timer: minutes of waiting pass at once, and always in the same order."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


# Not zero: code that takes "never" for the beginning of time shall be seen.
BEGINNING_S = 1000.0


# What was sent over a connection arrives at once, or on a busy machine a moment later.
NETWORK_S, BUSY_NETWORK_S = 0.002, 0.05


class _Jumping(selectors.DefaultSelector):
    now_s = BEGINNING_S
    _talked = False
    """Something has come over a connection since the clock jumped last: more may be on its way."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0 and len(self.get_map()) > 1:  # the loop's own wake-up pipe is always there
            ready = super().select(BUSY_NETWORK_S if self._talked else NETWORK_S)
        if timeout != 0:
            self._talked = bool(ready)
        else:
            self._talked |= bool(ready)
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

    def run_in_executor(  # type: ignore[override]  # typeshed has the overloads of a real executor
        self, _executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Here and now: while a thread works, this clock would jump to the next timer."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  # as an executor does
            done.set_exception(error)
        return done


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
