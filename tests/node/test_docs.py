"""The page of the agent lists exactly its options and the reasons of failures."""

import inspect
from pathlib import Path
from typing import get_args

from holdfast.cli.node import node
from holdfast.node.faults import FailureReason
from tests.docs.markdown import tables

DOCS = Path(__file__).parents[2] / "docs"
AGENT = tables((DOCS / "node-agent.md").read_text())


def test_the_page_lists_every_option_with_its_default() -> None:
    listed = {name.strip("`"): row["default"] for name, row in AGENT["Options of the agent"].items()}
    parameters = inspect.signature(node).parameters
    assert set(listed) == {f"--{name.replace('_', '-')}" for name in parameters}
    for name, parameter in parameters.items():
        if parameter.default not in ("", None, True):
            assert f"`{parameter.default}`" in listed[f"--{name.replace('_', '-')}"]


def test_troubleshooting_lists_every_reason() -> None:
    rows = tables((DOCS / "troubleshooting.md").read_text())["6. A CheckpointBackup is not saved"]
    assert set(get_args(FailureReason)) <= set(rows)
