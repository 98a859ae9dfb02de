"""Control planes with our kinds on them, and operators on those."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

from tests.conftest import deselect
from tests.control_plane.server import ControlPlane
from tests.operator import spot
from tests.operator.manifests import persistent_volume
from tests.operator.process import OperatorProcess

DEFINITIONS = Path(__file__).parents[2] / "manifests" / "crds"

StartOperator = Callable[..., OperatorProcess]


# Those that have our kinds already: nobody takes them off again.
_INSTALLED: WeakSet[ControlPlane] = WeakSet()


def install_kinds(plane: ControlPlane) -> None:
    if plane not in _INSTALLED:
        plane.kubectl("apply", "--server-side", f"--filename={DEFINITIONS}")
        plane.kubectl("wait", "--for=condition=Established", f"--filename={DEFINITIONS}")
        _INSTALLED.add(plane)


@pytest.fixture(scope="session")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """The shared control plane, with our kinds."""
    install_kinds(control_plane)
    return control_plane


@pytest.fixture
def start_operator(tmp_path: Path) -> Iterator[StartOperator]:
    """Starts operators that end with the test."""
    with ExitStack() as operators:

        def start(plane: ControlPlane, *options: str, **more: Any) -> OperatorProcess:
            return operators.enter_context(OperatorProcess(plane, tmp_path, *options, **more).running())

        yield start


@pytest.fixture
def operated(plane: ControlPlane, namespace: str, start_operator: StartOperator) -> ControlPlane:
    """The shared control plane, with an operator that looks after the test's namespace."""
    start_operator(plane, f"--namespace={namespace}", "--no-leader-elect")
    return plane


@pytest.fixture
def volume(plane: ControlPlane, namespace: str) -> Iterator[str]:
    """The manifest of a volume for a claim that says nothing; gone when the test ends."""
    yield persistent_volume(namespace)
    plane.kubectl("delete", "pv", namespace, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="session")
def spot_machines() -> None:
    """Marks tests whose machines are logged in to by an operator of its own."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asking = [item for item in items if "spot_machines" in getattr(item, "fixturenames", ())]
    if asking and (lacking := spot.obstacle()):
        deselect(config, items, asking, lacking)
