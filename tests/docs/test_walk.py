"""The console blocks that pages mark as runnable, run as a new user would: one after the other, on `holdfast up`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from holdfast import __version__
from tests.docs.markdown import blocks, runnable
from tests.docs.test_pages import PAGES, ROOT
from tests.local.up.up import Up

WALKED = {page.relative_to(ROOT).as_posix(): runnable(page.read_text()) for page in PAGES}
# They hold objects of the block before; what a page leaves is deleted before the next.
KINDS = ("tj", "gpuw")


class Terminal:
    """A folder with the examples of a clone, and the commands of `make setup` on the path."""

    def __init__(self, folder: Path, up: Up, kubectl: Path) -> None:
        self.folder = folder
        (folder / "examples").symlink_to(ROOT / "examples")
        (folder / "bin").mkdir()
        (folder / "bin/kubectl").symlink_to(kubectl)
        (folder / "bin/holdfast").write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
        (folder / "bin/holdfast").chmod(0o755)
        self._environ = {
            **os.environ,
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "KUBECONFIG": str(up.kubeconfig),
            "KUBERC": "off",
            "REGISTRY": up.registry,
        }

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command.replace(".venv/bin/", "")],
            cwd=self.folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory, binaries: Path) -> Iterator[Terminal]:
    folder = tmp_path_factory.mktemp("walk")
    # One GPU is pretended, so that the pages about GPUs can be walked; the reference trainer does not use it.
    with Up(folder / "data", "--gpus=1", log=folder / "up.log").running() as up:
        (folder / "clone").mkdir()
        yield Terminal(folder / "clone", up, binaries / "kubectl")


@pytest.mark.parametrize("page", [page for page, commands in WALKED.items() if commands])
def test_every_command_of_a_page_that_is_marked_as_runnable_succeeds(terminal: Terminal, page: str) -> None:
    for command in WALKED[page]:
        terminal.run(command)
    for kind in KINDS:
        left = json.loads(terminal.run(f"holdfast get {kind} -A -o json"))["items"]
        for each in left:
            terminal.run(f"holdfast delete {kind} {each['metadata']['name']} -n {each['metadata']['namespace']}")


def test_the_pages_that_a_new_user_reads_first_are_walked() -> None:
    assert {page for page, commands in WALKED.items() if commands} >= {
        "README.md",
        "docs/checkpoints.md",
        "docs/commands.md",
        "docs/gpuworkload.md",
        "docs/sdk.md",
        "docs/trainingjob.md",
    }


def test_the_readme_s_first_manifest_is_the_example_that_its_commands_run() -> None:
    printed = yaml.safe_load(blocks((ROOT / "README.md").read_text(), "yaml")[0])
    assert printed == yaml.safe_load((ROOT / "examples/trainingjob.yaml").read_text())


def test_the_readme_names_the_image_that_the_operator_asks_for_by_default() -> None:
    assert f"kind load docker-image holdfast:{__version__}`" in (ROOT / "README.md").read_text()
