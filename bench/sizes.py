"""How large modules and functions are, which names stand twice, and how many steps and modules each walk has.

    python -m bench.sizes

prints what the table in docs/architecture.md says of the present tree.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

SOURCES = Path("src/holdfast")
PAGE = Path("docs/architecture.md")
LATER = ("checkpointbackup", "node", "spotinstancejob", "machines", "providers", "pods/restore", "checkpoints/images")


def main() -> None:
    texts = {path: path.read_text() for path in sorted(SOURCES.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    modules = {path: texts[path].count("\n") for path, tree in trees.items() if has_code(tree)}
    functions = [size(node) for tree in trees.values() for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    classes = Counter(node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef))
    public = {name: count for name, count in classes.items() if not name.startswith("_")}
    show("modules", len(modules), spread(list(modules.values())))
    for folder in LATER:
        show(f"  of these in {folder}", sum(path.is_relative_to(SOURCES / folder) for path in modules))
    show("functions", len(functions), spread(functions))
    show("class names", len(classes), f"{sum(count > 1 for count in classes.values())} stand for two or more classes")
    show("public ones", len(public), f"{sum(count > 1 for count in public.values())} stand for two or more classes")
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE):
        steps = len(re.findall(r"^\d+\. ", section, re.MULTILINE))
        if steps:
            named = set(re.findall(r"\]\(\.\./(src/holdfast/[^)]+\.py)\)", section))
            show(section.partition("\n")[0], f"{steps} steps,", f"{len(named)} modules")


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def has_code(tree: ast.Module) -> bool:
    """Whether there is more than a docstring."""
    return any(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in tree.body)


def size(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From `def` to the last line."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def spread(sizes: Sequence[int]) -> str:
    ninth = sorted(sizes)[len(sizes) * 9 // 10]
    return f"{median(sizes):g} lines at the median, {ninth} at the 90th percentile"


def show(what: str, *facts: object) -> None:
    sys.stdout.write(f"{what}: {' '.join(map(str, facts))}\n")


if __name__ == "__main__":
    main()
