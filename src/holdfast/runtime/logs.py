"""Log lines for programs: one JSON object each on stderr, or plain text when a person watches the terminal."""

import logging
import sys
from collections.abc import Mapping
from typing import TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from holdfast.errors import HoldfastError

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class UnknownLevel(HoldfastError):
    """LOG_LEVEL says nothing that can be followed."""


def level_from(environment: Mapping[str, str]) -> int:
    """The level that LOG_LEVEL asks for; info without it."""
    name = environment.get("LOG_LEVEL", "").strip() or "info"
    if name.lower() not in LEVELS:
        raise UnknownLevel(f"LOG_LEVEL is {name!r}: use one of {', '.join(LEVELS)}")
    return LEVELS[name.lower()]


def configure(level: int, stream: TextIO = sys.stderr) -> None:
    """Send everything, also what libraries log, to `stream` in one shape."""
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
    # Tracebacks are without local variables: those may hold what nobody should read.
    if for_people:
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(timestamp_key="time", exception_formatter=plain)]
    return [structlog.processors.format_exc_info, _in_order, structlog.processors.JSONRenderer(_json)]


def _in_order(_: WrappedLogger, __: str, fields: EventDict) -> EventDict:
    first = {name: fields.pop(name) for name in ("time", "level", "event") if name in fields}
    return {**first, **fields}


def _json(fields: EventDict, **_: object) -> str:
    return msgspec.json.encode(fields, enc_hook=repr).decode()
