"""Labs of real nodes; where this machine can have none, the tests that need them are deselected, and it is said why."""

import subprocess
from collections.abc import AsyncIterator, Generator, Iterator

import pytest

from tests.conftest import deselect
from tests.control_plane.build import missing
from tests.control_plane.kubectl import KubectlFailed
from tests.nodes import build, criu, login, provision
from tests.nodes.lab import Lab
from tests.nodes.settings import QUICK


@pytest.fixture(scope="session")
def real_nodes() -> None:
    """What nodes are made of is there; without it a test fails, since a skipped one would look like a passed one."""
    absent = [*provision.missing_packages(), *(one.name for one in missing(build.node_folder(), build.BINARIES))]
    if absent:
        pytest.fail(f"real nodes need what is not there ({', '.join(absent)}): run `make nodes`", pytrace=False)


@pytest.fixture(scope="session")
def checkpointing(real_nodes: None) -> None:
    """What nodes save and restore containers with is there."""
    if not criu.criu_program().exists():
        pytest.fail("container checkpoints need CRIU, which is not there: run `make nodes`", pytrace=False)


@pytest.fixture(scope="session")
def joining(real_nodes: None) -> None:
    """What machines are logged in to with is there."""
    if not login.is_there():
        pytest.fail("machines that join need an SSH server, which is not there: run `make nodes`", pytrace=False)


@pytest.fixture(scope="module")
def lab(real_nodes: None) -> Iterator[Lab]:
    """Three nodes whose death Kubernetes notices, and acts on, within seconds."""
    with Lab(pace=QUICK).running() as lab:
        yield lab


@pytest.fixture
async def namespace(lab: Lab) -> AsyncIterator[str]:
    """A namespace of the test's own."""
    async with lab.plane.namespace() as name:
        yield name


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asking = [item for item in items if "real_nodes" in getattr(item, "fixturenames", ())]
    if asking and (lacking := provision.obstacles()):
        deselect(config, items, asking, provision.without_nodes(lacking))
    for fixture, obstacle in (("checkpointing", criu.obstacle), ("joining", login.obstacle)):
        asking = [item for item in items if fixture in getattr(item, "fixturenames", ())]
        if asking and (lacking_for := obstacle()):
            deselect(config, items, asking, lacking_for)


def _events(lab: Lab) -> str:
    try:
        return lab.plane.kubectl("get", "events", "--all-namespaces", "--sort-by=.metadata.creationTimestamp")
    except (KubectlFailed, subprocess.SubprocessError) as error:
        return f"they can't be read: {error}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the servers said last, beside a test that failed."""
    report = yield
    lab = getattr(item, "funcargs", {}).get("lab")
    if report.failed and isinstance(lab, Lab):
        report.sections.append(("events", _events(lab)))
        report.sections.extend((f"log of {component.name}", component.tail()) for component in lab.components)
    return report
