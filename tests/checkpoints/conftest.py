"""Stores of every kind: a folder, and real servers of the three object stores."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpoints.settings import open_bucket
from tests.checkpoints import provision
from tests.checkpoints.backends import BucketBackend, FolderBackend, StoreBackend, fresh_prefix
from tests.checkpoints.servers.server import Server, azure, gcs, s3

NOT_RUN = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    _must_be_there(provision.azurite())
    with azure(tmp_path_factory.mktemp("azure")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    _must_be_there(provision.fake_gcs())
    with gcs(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(params=["s3", "azure", "gcs"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the object stores."""
    found = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(found, Server)
    return found


@pytest.fixture(params=["folder", "s3", "azure", "gcs"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> StoreBackend:
    """A new job's store of each kind."""
    if request.param == "folder":
        return FolderBackend(tmp_path)
    server = request.getfixturevalue(f"{request.param}_server")
    return BucketBackend(tmp_path, open_bucket(server.address(fresh_prefix()), server.environ))


def _must_be_there(program: Path) -> None:
    """Without it a test fails, since a skipped one would look like a passed one."""
    if not program.exists():
        pytest.fail(f"{program.name} is not installed: run `make stores`", pytrace=False)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[NOT_RUN] = []
    for kind, why in provision.lacking().items():
        asking = [item for item in items if _asks_for(kind, item)]
        if asking:
            items[:] = [item for item in items if item not in asking]
            config.hook.pytest_deselected(items=asking)
            config.stash[NOT_RUN].append(f"{why} ({len(asking)} tests)")


def _asks_for(kind: str, item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    chosen = call.params.values() if call else ()
    return f"{kind}_server" in getattr(item, "fixturenames", ()) or (
        "checkpoints" in item.path.parts and kind in chosen
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(NOT_RUN, []):
        terminalreporter.write_line(line, yellow=True)
