"""A library that speaks as NVIDIA's does, built where there is a C compiler."""

import shutil
import subprocess
from pathlib import Path

import pytest

NOT_RUN = pytest.StashKey[int]()


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> str:
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(source)], check=True)
    return str(library)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asking = [item for item in items if "nvml" in getattr(item, "fixturenames", ())]
    if asking and shutil.which("cc") is None:
        config.stash[NOT_RUN] = len(asking)
        config.hook.pytest_deselected(items=asking)
        items[:] = [item for item in items if item not in asking]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash.get(NOT_RUN, 0):
        terminalreporter.write_line(f"{count} tests of GPU utilization are not run: they need a C compiler (cc).")
