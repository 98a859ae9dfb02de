"""One test can't harm the others: default signals for the processes that tests start, and a limit for every test.

A test that takes too long fails alone. A coroutine is cancelled, other tests are interrupted by SIGALRM. Where neither
helps (a coroutine that swallows its cancellation, a call into C that never returns) the process shows its stacks and
ends; pytest-xdist then ends the run with its report, since `--max-worker-restart=0` is set.
"""

import asyncio
import faulthandler
import functools
import inspect
import os
import signal
import time
from collections.abc import Awaitable, Callable, Generator
from types import FrameType
from typing import IO, Any

import pytest

# Python ignores these two itself, and subprocess restores them.
IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
IGNORED = pytest.StashKey[set[int]]()

# A coroutine is cancelled before SIGALRM comes, and SIGALRM comes before the process is ended.
COROUTINE_SHARE = 0.75
LAST_RESORT_S = 60.0

_STDERR = pytest.StashKey[IO[str]]()
_STARTED_S = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STDERR] = os.fdopen(os.dup(2), "w")
    # Under nohup, and in the background of a shell without job control, SIGHUP or SIGINT is ignored. What a process
    # ignores its children ignore too; what it handles they don't. So pytest ignores by a handler that does nothing.
    config.stash[IGNORED] = ignored = (
        set(getattr(config, "workerinput", {}).get("ignored_signals", ()))
        | {int(number) for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN}
        - IGNORED_BY_PYTHON
    )
    for number in ignored:
        signal.signal(number, _ignore)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """The processes of pytest-xdist ignore what the first one ignores."""
    node.workerinput["ignored_signals"] = list(node.config.stash[IGNORED])


def pytest_unconfigure(config: pytest.Config) -> None:
    faulthandler.cancel_dump_traceback_later()
    config.stash[_STDERR].close()


def limit_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker else item.config.getoption("timeout") or item.config.getini("timeout"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_STARTED_S] = time.monotonic()
    faulthandler.dump_traceback_later(limit_s(item) + LAST_RESORT_S, file=item.config.stash[_STDERR], exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if not isinstance(item, pytest.Function):
        return
    # SIGALRM counts from the start of the set-up, so this limit does too: a slow set-up never lets SIGALRM come first.
    seconds = COROUTINE_SHARE * limit_s(item)
    end_s = item.stash[_STARTED_S] + seconds
    if inspect.iscoroutinefunction(item.obj):
        item.obj = limited(item.obj, seconds, end_s)
    elif inspect.iscoroutinefunction(inner := getattr(getattr(item.obj, "hypothesis", None), "inner_test", None)):
        item.obj.hypothesis.inner_test = limited(inner, seconds, end_s)


def limited(test: Callable[..., Awaitable[None]], seconds: float, end_s: float) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def run(*args: Any, **kwargs: Any) -> None:
        try:
            async with asyncio.timeout(end_s - time.monotonic()) as limit:
                await test(*args, **kwargs)
        except TimeoutError:
            if limit.expired():
                pytest.fail(f"The test was cancelled after {seconds:.0f} s; what it waited for is shown above.")
            raise

    return run
