"""The package comes into any training image: old interpreters, nothing installed, next to no time."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import train

PACKAGE = Path(train.__file__).parent
MODULES = sorted(PACKAGE.glob("*.py"))
OLDEST = (3, 8)

LOADED = """
import json, sys
before = set(sys.modules)
import holdfast.train
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded(folder: Path) -> set[str]:
    """The modules that an import brings, in an interpreter that knows nothing but the standard library."""
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{LOADED}"]
    return set(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def test_an_import_brings_only_the_standard_library() -> None:
    modules = loaded(PACKAGE.parents[1])
    own = {name for name in modules if name.partition(".")[0] == "holdfast"}
    assert own == {"holdfast", "holdfast.train", *(f"holdfast.train.{file.stem}" for file in MODULES)} - {
        "holdfast.train.__init__"
    }
    assert {name.partition(".")[0] for name in modules - own} <= sys.stdlib_module_names


def test_an_import_leaves_out_what_is_slow_and_what_starts_something() -> None:
    modules = loaded(PACKAGE.parents[1])
    assert not modules & {"asyncio", "threading", "socket", "ssl", "http.client", "logging", "subprocess", "tempfile"}


def test_the_folder_works_alone(tmp_path: Path) -> None:
    copied = tmp_path / "holdfast" / "train"
    copied.mkdir(parents=True)
    for file in MODULES:
        (copied / file.name).write_bytes(file.read_bytes())
    assert "holdfast.train.run" in loaded(tmp_path)


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.name)
def test_a_module_is_written_in_what_the_oldest_interpreter_reads(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=OLDEST)
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Match | ast.TryStar)]
    annotated = any(isinstance(node, ast.AnnAssign | ast.arg) and node.annotation for node in ast.walk(tree))
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert not annotated or "annotations" in imports, (
        "X | None is no expression there, and fine where none is evaluated"
    )


def test_the_surface_is_small() -> None:
    assert train.__all__ == ["BadEnvironment", "CheckpointFailed", "Run", "TrainError", "start"]
    methods = {name for name in vars(train.Run) if not name.startswith("_")}
    assert methods == {"batches", "checkpoint", "due", "epochs", "notice", "on_notice", "report", "stop_on_sigterm"}
