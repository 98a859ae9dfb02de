"""SIGTERM, SIGINT and SIGHUP: the first asks to stop in order, a second one ends the process at once.

SIGHUP comes when the terminal is closed, from the shell and again from the kernel: it asks, and never hurries.
"""

import asyncio
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STDOUT, STDERR = 1, 2

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@contextmanager
def on_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first signal inside the block. What nohup has the process ignore stays ignored."""
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def receive(number: signal.Signals) -> None:
        if number == signal.SIGHUP:
            _leave_terminal()
            if received:
                return
        received.append(number)
        if len(received) > 1:
            log.warning("asked again, ending at once", signal=number.name)
            os._exit(128 + number)
        log.info("stopping; a second signal ends at once", signal=number.name)
        stop()

    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    heard = [number for number in SIGNALS if number != signal.SIGHUP or not is_ignored]
    for number in heard:
        loop.add_signal_handler(number, receive, number)
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


def _leave_terminal() -> None:
    """A write to a terminal that is closed fails, and must not end what still has to be done."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (STDOUT, STDERR):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.dup2(nowhere, descriptor)
    os.close(nowhere)
