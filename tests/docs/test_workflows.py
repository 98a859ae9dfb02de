"""What runs elsewhere: pinned, with targets that are there, on every Python that is supported."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

workflows = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@workflows
def test_an_action_is_pinned_by_its_commit(path: Path) -> None:
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", action)] == []


@workflows
def test_a_workflow_may_only_read(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


@workflows
def test_a_target_that_is_called_is_there(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {name for step in steps(path) for name in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))}
    assert called
    assert called <= targets


def test_every_python_from_the_oldest_supported_on_is_tried() -> None:
    oldest = re.search(r'^requires-python = ">=(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert oldest
    tried = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["fast"]["strategy"]["matrix"]
    assert tried["python"][0] == oldest[1]
    assert tried["python"] == [f"3.{minor}" for minor in range(11, 11 + len(tried["python"]))]
