"""What docs/architecture.md and docs/development.md say of modules and names is true of the sources."""

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path

from tests.docs.test_pages import ROOT

PAGE = ROOT / "docs/architecture.md"
WALKS = ROOT / "docs/development.md"
SOURCES = ROOT / "src/holdfast"
NAMED = re.compile(r"\]\(\.\./(src/holdfast/[^)]+\.py)\)((?:[ ,]*`[A-Za-z_.0-9]+`)+)")


def test_what_a_walk_names_is_defined_in_the_module_that_it_links() -> None:
    named = [(link, name) for link, names in NAMED.findall(PAGE.read_text()) for name in re.findall(r"`(.+?)`", names)]
    assert len(named) > 100
    assert [f"{name} in {link}" for link, name in named if not _defines(ROOT / link, name)] == []


def test_files_and_folders_that_a_walk_of_development_names_exist() -> None:
    paths = re.findall(r"`((?:src|tests|examples|manifests|docs)/[^`<*\s]+)`", WALKS.read_text())
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_module_without_a_path_is_in_a_folder_that_its_paragraph_names() -> None:
    text = re.sub(r"src/holdfast/<kind>/", "src/holdfast/gpuworkload/", WALKS.read_text())
    checked = 0
    for paragraph in re.split(r"\n\n|\n(?=\d+\. )", text):
        paths = [ROOT / path for path in re.findall(r"`((?:src|tests)/[^`<*\s]+)`", paragraph)]
        named = {path if path.is_dir() else path.parent for path in paths}
        folders = named or {path.parent for path in SOURCES.rglob("*.py")}  # as in: `metrics.py` of its kind
        for name in re.findall(r"`([a-z_]+\.py)`", paragraph):
            checked += 1
            assert any((folder / name).exists() for folder in folders), f"{name} in {sorted(map(str, folders))}"
    assert checked > 10


def test_a_name_that_a_walk_finds_in_a_module_is_defined_there() -> None:
    found = re.findall(r"((?:`\w+`(?:, | and | or |,? `)?)+)\s+(?:in|of)\s+`(src/[^`<]+\.py)`", WALKS.read_text())
    named = [(path, name) for names, path in found for name in re.findall(r"\w+", names) if name not in ("and", "or")]
    assert len(named) > 8
    assert [f"{name} in {path}" for path, name in named if not _defines_anywhere(ROOT / path, name)] == []


def test_the_table_of_layers_has_the_packages_of_the_contract_in_their_order() -> None:
    rows = re.findall(r"^\| (\d) \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    listed = {name.removesuffix(".py"): int(number) for number, names in rows for name in re.findall(r"`(.+?)`", names)}
    (contract, *_) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [
        {listed[each.strip().removeprefix("holdfast.").replace(".", "/")] for each in layer.split("|")}
        for layer in contract["layers"]
    ]
    assert [len(numbers) for numbers in layers] == [1] * len(layers)
    assert layers == sorted(layers, key=min)
    assert set().union(*layers) == set(listed.values())


def test_no_two_public_classes_have_one_name() -> None:
    modules = defaultdict(list)
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(str(path.relative_to(SOURCES)))
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}


def _defines(path: Path, name: str) -> bool:
    """Whether the module has it at its top, or a class of it has."""
    body = ast.parse(path.read_text()).body
    for part in name.split("."):
        found = [node for node in body if part in _names(node)]
        if not found:
            return False
        body = found[0].body if isinstance(found[0], ast.ClassDef) else []
    return True


def _defines_anywhere(path: Path, name: str) -> bool:
    """Whether the module, or a class of it, defines the name, or the module imports it to use it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return True
        if isinstance(node, ast.stmt) and name in _names(node):
            return True
    return False


def _names(node: ast.stmt) -> set[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()
