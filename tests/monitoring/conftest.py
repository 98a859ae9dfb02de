"""Prometheus and promtool; where they can't be had, what needs them is deselected."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import deselect
from tests.monitoring import provision
from tests.operator.conftest import start_operator

__all__ = ["start_operator"]

# Runs promtool with an input; fails unless it ends well, or with one of the codes.
Promtool = Callable[..., str]


@pytest.fixture(scope="session")
def prometheus() -> Path:
    return _program("prometheus")


@pytest.fixture(scope="session")
def promtool() -> Promtool:
    """Runs it with an input; it may end with a code that a test allows."""
    program = _program("promtool")

    def run(*arguments: str, text: str = "", codes: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, check=False)
        assert done.returncode in codes, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def _program(name: str) -> Path:
    """Without it a test fails, since a skipped one would look like a passed one."""
    found = provision.program(name)
    if found is None:
        pytest.fail(f"{name} is not there: run `make monitoring`", pytrace=False)
    return found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asking = [item for item in items if {"prometheus", "promtool"} & set(getattr(item, "fixturenames", ()))]
    if asking and (why := provision.obstacle()):
        deselect(config, items, asking, why)
