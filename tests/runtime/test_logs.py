"""Log lines as a program gets them, and as a person does."""

import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import structlog

from holdfast.api.meta import Key
from holdfast.runtime.process import UnknownLevel, configure, level_from


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Give the rest of the tests their logging back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_with_time_level_and_event_first() -> None:
    stream = io.StringIO()
    configure(logging.INFO, stream)
    structlog.get_logger().info("status", key="ml/mnist", attempt=2, message="two\nlines")
    (line,) = lines(stream)
    assert list(line)[:3] == ["time", "level", "event"]
    assert datetime.fromisoformat(line["time"]).utcoffset() is not None
    assert (line["level"], line["event"], line["key"], line["attempt"]) == ("info", "status", "ml/mnist", 2)
    assert line["message"] == "two\nlines"


def test_what_libraries_log_has_the_same_shape() -> None:
    stream = io.StringIO()
    configure(logging.INFO, stream)
    logging.getLogger("aiohttp.client").warning("slow answer from %s", "there", extra={"took_s": 3})
    (line,) = lines(stream)
    assert (line["level"], line["event"], line["logger"]) == ("warning", "slow answer from there", "aiohttp.client")
    assert line["took_s"] == 3


def test_below_the_level_nothing_is_written() -> None:
    stream = io.StringIO()
    configure(logging.WARNING, stream)
    structlog.get_logger().info("quiet")
    logging.getLogger("library").info("quiet")
    structlog.get_logger().error("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_a_traceback_is_one_field_without_local_variables() -> None:
    stream = io.StringIO()
    configure(logging.INFO, stream)
    try:
        password = "hunter2"  # noqa: F841 - it must not be seen
        raise ValueError("went wrong")
    except ValueError:
        structlog.get_logger().exception("reconcile failed")
        logging.getLogger("library").exception("library failed")
    assert len(lines(stream)) == 2
    for line in lines(stream):
        assert line["exception"].endswith("ValueError: went wrong")
    assert "hunter2" not in stream.getvalue()


def test_a_value_that_json_does_not_know_is_written_as_python_shows_it() -> None:
    stream = io.StringIO()
    configure(logging.INFO, stream)
    structlog.get_logger().info("odd", error=ValueError("why"), key=Key("ns", "a"))
    (line,) = lines(stream)
    assert line["error"] == "ValueError('why')"
    assert line["key"] == ["ns", "a"]


def test_a_person_at_a_terminal_gets_text() -> None:
    stream = Terminal()
    configure(logging.INFO, stream)
    try:
        raise ValueError("went wrong")
    except ValueError:
        structlog.get_logger().exception("reconcile failed", key="ml/mnist")
    assert "reconcile failed" in stream.getvalue()
    assert "ValueError: went wrong" in stream.getvalue()
    with pytest.raises(json.JSONDecodeError):
        json.loads(stream.getvalue().splitlines()[0])


@pytest.mark.parametrize(
    ("written", "level"),
    [
        ({}, logging.INFO),
        ({"LOG_LEVEL": ""}, logging.INFO),
        ({"LOG_LEVEL": "debug"}, logging.DEBUG),
        ({"LOG_LEVEL": " WARNING "}, logging.WARNING),
        ({"LOG_LEVEL": "Error"}, logging.ERROR),
    ],
)
def test_log_level_is_read_from_the_environment(written: dict[str, str], level: int) -> None:
    assert level_from(written) == level


@pytest.mark.parametrize("written", ["verbose", "10", "info,debug"])
def test_a_level_that_is_none_is_refused_with_those_that_are(written: str) -> None:
    with pytest.raises(UnknownLevel, match="use one of debug, info, warning, error"):
        level_from({"LOG_LEVEL": written})
