"""SIGTERM and SIGINT: the first asks to stop in order, the second ends the process at once."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

SIGNALS = (signal.SIGTERM, signal.SIGINT)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@contextmanager
def on_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first signal inside the block."""
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def receive(number: signal.Signals) -> None:
        received.append(number)
        if len(received) > 1:
            log.warning("asked again, ending at once", signal=number.name)
            os._exit(128 + number)
        log.info("stopping; a second signal ends at once", signal=number.name)
        stop()

    for number in SIGNALS:
        loop.add_signal_handler(number, receive, number)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
