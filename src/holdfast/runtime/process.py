"""The process of an operator: signals, logging and clocks.

The first SIGTERM, SIGINT or SIGHUP requests an orderly stop, a second signal ends the process at once. SIGHUP comes
when the terminal is closed, from the shell and again from the kernel: a SIGHUP never ends the process at once.
"""

import asyncio
import logging
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TextIO, TypeAlias

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from holdfast.errors import HoldfastError

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STDOUT, STDERR = 1, 2

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@contextmanager
def on_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first signal inside the block. A SIGHUP that nohup ignores stays ignored."""
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
    handled = [number for number in SIGNALS if number != signal.SIGHUP or not is_ignored]
    for number in handled:
        loop.add_signal_handler(number, receive, number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


def _leave_terminal() -> None:
    """A write to a closed terminal fails, and must not interrupt the orderly stop."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (STDOUT, STDERR):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.dup2(null, descriptor)
    os.close(null)


# Logging to stderr: one JSON object per line, or plain text when stderr is a terminal.

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class UnknownLevel(HoldfastError):
    """LOG_LEVEL names no known level."""


def level_from(environment: Mapping[str, str]) -> int:
    """The level in LOG_LEVEL; info by default."""
    name = environment.get("LOG_LEVEL", "").strip() or "info"
    if name.lower() not in LEVELS:
        raise UnknownLevel(f"LOG_LEVEL is {name!r}: use one of {', '.join(LEVELS)}")
    return LEVELS[name.lower()]


def configure(level: int, stream: TextIO = sys.stderr) -> None:
    """Send all logs, also those of libraries, to `stream` in one format."""
    common: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*common, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(stream.isatty())],
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    structlog.configure(
        processors=[*common, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def _rendering(for_people: bool) -> list[Processor]:
    # Tracebacks are without local variables: variables may hold secrets.
    if for_people:
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(timestamp_key="time", exception_formatter=plain)]
    return [structlog.processors.format_exc_info, _in_order, structlog.processors.JSONRenderer(_json)]


def _in_order(_: WrappedLogger, __: str, fields: EventDict) -> EventDict:
    first = {name: fields.pop(name) for name in ("time", "level", "event") if name in fields}
    return {**first, **fields}


def _json(fields: EventDict, **_: object) -> str:
    return msgspec.json.encode(fields, enc_hook=repr).decode()


# The real clocks. Code that must run in virtual time takes a clock as an argument instead.

Now: TypeAlias = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


def boottime_s() -> float:
    """Seconds that also pass while the process is stopped or the machine is suspended."""
    # CLOCK_MONOTONIC, which the event loop uses, stands still while a Linux machine is suspended.
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
