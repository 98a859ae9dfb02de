"""The frameworks' interpreters, and a cluster of this machine alone to run them on."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.local.host import detect_hardware
from holdfast.local.up import LocalCluster, local_cluster
from tests.conftest import deselect
from tests.frameworks import provision


@pytest.fixture(scope="package")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the cluster keeps everything."""
    return tmp_path_factory.mktemp("onebox")


@pytest.fixture(scope="package")
async def box(data: Path) -> AsyncIterator[LocalCluster]:
    async with local_cluster(data, detect_hardware(gpus=0), limits=False) as box:
        yield box


@pytest.fixture(scope="session")
def jax_python() -> Path:
    """The interpreter that has JAX; without it a test fails, since a skipped one would look like a passed one."""
    python = provision.python_in(provision.jax_folder())
    if python is None:
        pytest.fail("JAX is not installed for the tests: run `make frameworks`", pytrace=False)
    return python


@pytest.fixture(scope="session")
def tensorflow_python() -> Path:
    """The interpreter that has TensorFlow, or a failure as without JAX."""
    python = provision.python_in(provision.tensorflow_folder())
    if python is None:
        pytest.fail("TensorFlow is not installed for the tests: run `make frameworks`", pytrace=False)
    return python


@pytest.fixture(scope="session")
def tensorboard_python() -> Path:
    """The interpreter that has TensorBoard, or a failure as without JAX."""
    python = provision.python_in(provision.tensorboard_folder())
    if python is None:
        pytest.fail("TensorBoard is not installed for the tests: run `make frameworks`", pytrace=False)
    return python


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """Debian's interpreter with PyTorch. Where it can't be had, the tests that ask for it are deselected."""
    if not provision.torch_is_there():
        pytest.fail("PyTorch is not installed for the tests: run `make frameworks`", pytrace=False)
    return provision.TORCH_PYTHON


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asking = [item for item in items if "torch_python" in getattr(item, "fixturenames", ())]
    if asking and not provision.torch_is_there() and not provision.torch_can_be_installed():
        deselect(config, items, asking, provision.without_torch())
