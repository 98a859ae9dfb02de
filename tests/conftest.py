"""The real control plane as fixtures, its servers' logs beside a test that failed, and which tests are not run."""

import shutil
import subprocess
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.control_plane.build import binary_folder, missing
from tests.control_plane.nodes import Nodes
from tests.control_plane.server import ControlPlane, FreshControlPlane

pytest_plugins = ["tests.isolation", "tests.leaks"]

OLDEST_SUPPORTED = "1.33"

# The same cases in every run: one that fails fails again. `make search` looks for new ones. No case is too slow.
EVER = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", EVER, derandomize=True)
settings.register_profile("search", EVER, derandomize=False, print_blob=True)
settings.load_profile("repeatable")

# The control planes that run now, by the fixture that started them; and where their logs ended when the test began.
RUNNING = pytest.StashKey[dict[str, list[ControlPlane]]]()
LOGS_BEGIN = pytest.StashKey[dict[Path, int]]()

# What a test that failed has printed and logged is thousands of lines for some; its report has the last ones.
CAPTURED_LINES = 100

# A test is marked `server` if it uses one that has to be provided, by a fixture or by a parameter that names one.
SERVERS = frozenset(("binaries", "control_plane", "old_control_plane", "kubernetes", "registry_server"))

# Begun first where several processes share the tests: what is begun last is short, and nobody waits long for the end.
LONGEST = (
    "tests/nodes/test_trainingjob.py",
    "tests/chaos/test_gpuworkloads.py",
    "tests/chaos/test_many.py",
    "tests/nodes/",
    "tests/frameworks/",
    "tests/checkpointbackup/controller/test_many.py",
    "tests/local/up/",
    "tests/contract/test_watch.py",
    "tests/trainingjob/controller/",
    "tests/operator/",
    "tests/charts/",
    "tests/sidecar/",
    "tests/cli/",
    "tests/runtime/test_real_cluster.py",
)

# Why tests were deselected, each a sentence for the end of the run.
NOT_RUN = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def binaries() -> Path:
    """The control plane's programs; without them a test fails, since a skipped one would look like a passed one."""
    folder = binary_folder()
    if absent := missing(folder):
        names = ", ".join(binary.name for binary in absent)
        pytest.fail(
            f"the control plane is not built ({names} not in {folder}): run `make control-plane`", pytrace=False
        )
    return folder


@pytest.fixture(scope="session")
def control_plane(
    binaries: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[ControlPlane]:
    """One control plane for all tests that neither stop it nor need it otherwise."""
    plane = ControlPlane(tmp_path_factory.mktemp("control-plane"), binaries)
    with _noted(pytestconfig, "control_plane", plane), plane.running():
        yield plane


@pytest.fixture(scope="session")
def old_control_plane(
    binaries: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[ControlPlane]:
    """The same, as the oldest Kubernetes that holdfast supports."""
    plane = ControlPlane(tmp_path_factory.mktemp("old-control-plane"), binaries, emulated_version=OLDEST_SUPPORTED)
    with _noted(pytestconfig, "old_control_plane", plane), plane.running():
        yield plane


@pytest.fixture
def fresh_control_plane(
    binaries: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[FreshControlPlane]:
    """Starts a control plane of the test's own, to be stopped at will or given other flags."""
    with ExitStack() as planes:

        def start(*, emulated_version: str = "", flags: Mapping[str, Sequence[str]] | None = None) -> ControlPlane:
            folder = tmp_path_factory.mktemp("fresh-control-plane")
            plane = ControlPlane(folder, binaries, emulated_version=emulated_version, flags=flags)
            planes.enter_context(_noted(pytestconfig, "fresh_control_plane", plane))
            return planes.enter_context(plane.running())

        yield start


@pytest.fixture
async def namespace(control_plane: ControlPlane) -> AsyncIterator[str]:
    """A namespace of the test's own on the shared control plane."""
    async with control_plane.namespace() as name:
        yield name


@pytest.fixture
async def nodes(control_plane: ControlPlane) -> AsyncIterator[Nodes]:
    """Fake nodes on the shared control plane that go when the test ends."""
    nodes = Nodes(control_plane.api)
    yield nodes
    await nodes.remove()


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library that speaks as NVIDIA's does."""
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).parent / "train" / "nvml.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(source)], check=True)
    return str(library)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
        used = {*getattr(item, "fixturenames", ()), *(each for each in chosen if isinstance(each, str))}
        if not SERVERS.isdisjoint(used):
            item.add_marker("server")
        if item.get_closest_marker("in_part") and not item.get_closest_marker("every_engine"):
            item.add_marker("long")
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _rank(item.nodeid))
    asking = [item for item in items if "nvml" in getattr(item, "fixturenames", ())]
    if asking and shutil.which("cc") is None:
        deselect(config, items, asking, "tests of GPU utilization are not run: they need a C compiler (cc)")


def _rank(test: str) -> int:
    return next((rank for rank, start in enumerate(LONGEST) if test.startswith(start)), len(LONGEST))


@contextmanager
def _noted(config: pytest.Config, fixture: str, plane: ControlPlane) -> Iterator[None]:
    """Remember that the plane runs, for the reports of the tests that use it."""
    running = config.stash.setdefault(RUNNING, {}).setdefault(fixture, [])
    running.append(plane)
    try:
        yield
    finally:
        running.remove(plane)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[LOGS_BEGIN] = {
        component.log: component.log_size for plane in _planes(item) for component in plane.components
    }


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections = [(name, _last_lines(text)) for name, text in report.sections]
        begin = item.stash.get(LOGS_BEGIN, {})
        for plane in _planes(item):
            for component in plane.components:
                since = begin.get(component.log, 0)
                report.sections.append((f"log of {component.name}", component.tail(since=since)))
    return report


def _last_lines(text: str) -> str:
    lines = text.splitlines()
    if len(lines) <= CAPTURED_LINES:
        return text
    return "\n".join([f"(the last {CAPTURED_LINES} of {len(lines)} lines)", *lines[-CAPTURED_LINES:]])


def _planes(item: pytest.Item) -> list[ControlPlane]:
    """The control planes behind the fixtures that a test uses, directly or through others."""
    running = item.config.stash.get(RUNNING, {})
    return [plane for name in getattr(item, "fixturenames", ()) for plane in running.get(name, ())]


def deselect(config: pytest.Config, items: list[pytest.Item], out: list[pytest.Item], why: str) -> None:
    """Leave tests out that this machine can't run, and have the last lines of the run say so."""
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=out)
    config.stash.setdefault(NOT_RUN, []).append(f"{why} ({len(out)} tests)")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that runs a part of the tests hands it on to the one that reports."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["not_run"] = session.config.stash.get(NOT_RUN, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """All of them deselect the same."""
    said = node.config.stash.setdefault(NOT_RUN, [])
    said.extend(why for why in getattr(node, "workeroutput", {}).get("not_run", ()) if why not in said)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for why in config.stash.get(NOT_RUN, []):
        terminalreporter.write_line(why, yellow=True)
