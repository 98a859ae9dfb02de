"""What the images hold: the interpreter of the tests with what holdfast needs, a shell, and holdfast itself."""

import compileall
import importlib.metadata
import re
import shutil
import sys
import sysconfig
from pathlib import Path

from tests.nodes.tree import Tree

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "holdfast"
PROGRAMS = ("sh", "cat", "echo", "env", "false", "head", "hostname", "id", "ls", "mkdir", "rm", "sleep", "true")
NOT_NEEDED = frozenset(
    {"test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "site-packages", "dist-packages"}
)


def python() -> Tree:
    """The interpreter, its standard library, the packages of requirements.txt, a shell with a few commands."""
    tree = Tree()
    scripts = Path(sys.executable).parent
    for name in ("python", "python3", "holdfast"):
        tree.add(scripts / name)
    tree.add(scripts.parent / "pyvenv.cfg")
    base = {"base": sys.base_prefix, "installed_base": sys.base_prefix, "platbase": sys.base_prefix}
    for name in sorted({sysconfig.get_path(which, vars=base) for which in ("stdlib", "platstdlib")}):
        to_link_with = {folder.name for folder in Path(name).glob("config-*")}
        tree.add_folder(Path(name), without=NOT_NEEDED | to_link_with)
    for requirement in (*_pinned(), "holdfast-operator"):
        _add_package(tree, requirement)
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found, f"this machine has no {name}"
        tree.add(Path(found))
    return tree


def holdfast() -> Tree:
    """Compiled beforehand: a pod can't write what it compiles, and would do it again each time."""
    compileall.compile_dir(SOURCES, quiet=2)
    tree = Tree()
    tree.add_folder(SOURCES)
    return tree


def _pinned() -> list[str]:
    """The packages of requirements.txt that are installed; the others are for other systems."""
    names = re.findall(r"^([A-Za-z0-9._-]+)==", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    installed = {_normalized(one.name) for one in importlib.metadata.distributions()}
    return [name for name in dict.fromkeys(names) if _normalized(name) in installed]


def _normalized(name: str) -> str:
    """Names of packages are the same with a dash, a dot or an underscore."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _add_package(tree: Tree, name: str) -> None:
    for file in importlib.metadata.distribution(name).files or ():
        if (path := Path(str(file.locate()))).exists() and not NOT_NEEDED & set(file.parts):
            tree.add(path)
