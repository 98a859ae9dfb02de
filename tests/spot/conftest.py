"""Hundreds of operators run and die here: their lines are not worth printing, and no error is to be among them."""

import logging
from collections.abc import Iterator, MutableMapping
from typing import Any, NoReturn

import pytest
import structlog

# An operator that dies says so of each of its parts.
DEATHS = ("crashed too",)


class _Errors:
    def __init__(self) -> None:
        self.found: list[MutableMapping[str, Any]] = []

    def __call__(self, _logger: object, _method: str, event: MutableMapping[str, Any]) -> NoReturn:
        if event["event"] not in DEATHS:
            self.found.append(event)
        raise structlog.DropEvent


@pytest.fixture(autouse=True)
def no_errors() -> Iterator[None]:
    before, errors = structlog.get_config(), _Errors()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR), processors=[errors])
    yield
    structlog.configure(**before)
    assert not errors.found
