"""The image is built from a clone: no wheel is made before, and nothing to build with is left in it."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import __version__
from tests.nodes import contents
from tests.nodes.contents import NOT_NEEDED, ROOT
from tests.nodes.image import write_image, write_layer
from tests.nodes.provision import wheels
from tests.nodes.tree import Tree

PROGRAMS = ("rm", "cat")
NOT_CLONED = shutil.ignore_patterns(".venv", ".git", "dist", "build", "__pycache__", ".*_cache", ".hypothesis")


class Buildah:
    """Images of its own: nothing of the machine's is seen or changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *arguments: str | Path) -> str:
        store = ["--root", str(self.folder / "root"), "--runroot", str(self.folder / "run"), "--storage-driver", "vfs"]
        environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(self.folder)}
        done = subprocess.run(
            ["buildah", *store, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, f"buildah {arguments}:\n{done.stdout}{done.stderr}"
        return done.stdout.strip()


def write_base(folder: Path) -> Path:
    """An image of this machine's Python and a shell: what python:3.13-slim is to a build elsewhere."""
    tree = Tree()
    interpreter = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    (folder / "python").symlink_to(interpreter)
    tree.add(folder / "python")
    base = {"base": sys.base_prefix, "installed_base": sys.base_prefix, "platbase": sys.base_prefix}
    for name in sorted({sysconfig.get_path(which, vars=base) for which in ("stdlib", "platstdlib")}):
        to_link_with = {one.name for one in Path(name).glob("config-*")}
        tree.add_folder(Path(name), without=NOT_NEEDED - {"ensurepip"} | to_link_with)
    for own in (*Path(sysconfig.get_path("purelib", vars=base)).glob("pip*"), *interpreter.parent.glob("pip*")):
        tree.add(own)
        tree.add_folder(own)
    if bundled := sysconfig.get_config_var("WHEEL_PKG_DIR"):  # where Debian keeps the pip that a venv gets
        tree.add_folder(Path(bundled))
    tree.add(Path("/bin/sh"))  # what RUN calls, by this path
    for name in PROGRAMS:
        tree.add(Path(str(shutil.which(name))))
    tree.add_libraries()
    installed = contents.python()
    installed.add_libraries()
    for path in installed.paths:  # the C libraries that every glibc system has, and packages are linked with
        if path.name.startswith("lib") and ".so" in path.name and not path.is_relative_to(sys.prefix):
            tree.add(path)
    layer = write_layer(tree, folder / "base.layer", root=True)
    write_image(folder / "base.tar", "base", [layer], ["sh"], {"PATH": f"{folder}:{os.defpath}"})
    return folder / "base.tar"


@pytest.fixture(scope="module")
def image(real_nodes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Buildah, str]]:
    """What `docker build .` makes; only where it gets its base and its packages from is this machine's."""
    folder = tmp_path_factory.mktemp("image")
    buildah = Buildah(folder)
    base = buildah("pull", "-q", f"oci-archive:{write_base(folder)}")
    shutil.copytree(ROOT, folder / "clone", ignore=NOT_CLONED)
    (folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    volumes = ["-v", f"{wheels()}:/wheels:ro", "-v", f"{folder / 'pip.conf'}:/etc/pip.conf:ro"]
    buildah("bud", "-q", "--pull-never", "--build-arg", f"BASE={base}", *volumes, "-t", "built", folder / "clone")
    yield buildah, buildah("from", "built")
    buildah("rm", "--all")
    shutil.rmtree(folder)


def test_it_runs_the_command_and_the_trainer_of_this_version(image: tuple[Buildah, str]) -> None:
    buildah, container = image
    assert buildah("run", container, "holdfast", "version") == __version__
    script = "import importlib.metadata as m, holdfast.trainer.run; print(m.version('holdfast-operator'))"
    assert buildah("run", container, "python", "-c", script) == __version__


def test_nobody_in_it_is_root_and_it_trains_by_itself(image: tuple[Buildah, str]) -> None:
    buildah, container = image
    config = json.loads(buildah("inspect", container))["OCIv1"]["config"]
    assert (config["User"], config["Cmd"]) == ("65532:65532", ["python", "-m", "holdfast.trainer"])


def test_nothing_to_install_or_build_with_is_left_in_it(image: tuple[Buildah, str]) -> None:
    buildah, container = image
    root = Path(buildah("mount", container))
    left = {
        path.relative_to(root)
        for path in root.rglob("*")
        if re.fullmatch(r"pip([-3].*)?|ensurepip|hatchling|pyproject.toml", path.name)
    }
    assert left == set()
    buildah("umount", container)
