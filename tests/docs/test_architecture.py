"""What docs/architecture.md says of modules and names is true of the sources."""

import ast
import re
from collections import defaultdict
from pathlib import Path

from tests.docs.test_pages import ROOT

PAGE = ROOT / "docs/architecture.md"
SOURCES = ROOT / "src/holdfast"
NAMED = re.compile(r"\]\(\.\./(src/holdfast/[^)]+\.py)\)((?:[ ,]*`[A-Za-z_.0-9]+`)+)")


def test_what_a_walk_names_is_defined_in_the_module_that_it_links() -> None:
    named = [(link, name) for link, names in NAMED.findall(PAGE.read_text()) for name in re.findall(r"`(.+?)`", names)]
    assert len(named) > 100
    assert [f"{name} in {link}" for link, name in named if not _defines(ROOT / link, name)] == []


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


def _names(node: ast.stmt) -> set[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()
