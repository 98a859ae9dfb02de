"""What the pages list is what the code has: variables, objects, states, classes of failure."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec import structs

from holdfast.api.trainingjob_blocks import FailurePolicy
from holdfast.api.trainingjob_status import State
from holdfast.node.notice.azure import Azure
from holdfast.node.notice.compute_engine import ComputeEngine
from holdfast.node.notice.ec2 import Ec2
from holdfast.node.notice.mark import ReceivedNotice
from holdfast.node.notice.metadata import PreemptionNotice
from holdfast.pods.failure import CLASSES, FREE
from holdfast.trainingjob.objects.environment import worker_log_config_map
from tests.docs.markdown import tables
from tests.trainingjob.objects.family import DEFAULTS, children, container
from tests.trainingjobs import training_job

DOCS = Path(__file__).parents[2] / "docs"
# Everything that adds a variable or an object.
WHOLE: dict[str, Any] = {
    "gpusPerWorker": 2,
    "hyperparameters": {
        "learningRate": 0.1,
        "batchSize": 8,
        "epochs": 3,
        "optimizer": "adam",
        "warmupSteps": 5,
        "gradientAccumulationSteps": 2,
        "mixedPrecision": True,
        "additionalParams": {"seed": "7"},
    },
    "checkpoint": {"interval": "30m"},
    "monitoring": {"tensorboardEnabled": True, "mlflowTrackingUri": "http://mlflow", "wandbProject": "bert"},
}


def _table(page: str, section: str) -> dict[str, dict[str, str]]:
    return tables((DOCS / page).read_text())[section]


def _literals(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def _family(variable: str) -> str:
    """PET_NNODES is listed as PET_*."""
    return re.sub(r"^(PET|PARAM)_.*", r"\1_*", variable)


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax"])
def test_the_page_lists_exactly_the_variables_that_a_worker_gets(framework: str) -> None:
    rows = _table("trainingjob.md", "Your own training")
    others = {"pytorch", "tensorflow", "jax"} - {framework}
    told = {
        name
        for row, cells in rows.items()
        if row not in others
        for name in _literals(cells["variables"])
        if re.fullmatch(r"[A-Z_*]+", name)
    }
    given = {_family(variable["name"]) for variable in container({**WHOLE, "framework": framework})["env"]}
    assert told == given


def test_the_page_lists_exactly_the_objects_that_are_made() -> None:
    page = (DOCS / "trainingjob.md").read_text()
    section = page.split("## What is made\n", 1)[1].split("\n## ", 1)[0]
    told = {
        (kind.split(" ")[0], name)
        for row, name in re.findall(r"^\| ([^|`]+) \| [^`|]*`([^`]+)`", section, re.MULTILINE)
        for kind in row.replace("Service, headless", "Service").split(", ")
    }
    job = training_job(WHOLE)
    made = children(job, structs.replace(DEFAULTS, service_monitors=True))
    named = {(body["kind"], body["metadata"]["name"].replace(job.metadata.name, "{name}")) for body in made}
    kept = worker_log_config_map(job, 7, b"", {})
    assert kept["metadata"]["name"] == "bert-log-0-7"
    assert told == {*named, ("ConfigMap", "{name}-log-{attempt}-{worker}")}


def test_the_page_lists_every_state() -> None:
    told = [state for row in _table("trainingjob.md", "States") for state in row.split(", ")]
    assert sorted(told) == sorted(get_args(State))


def test_the_classes_of_failure_stand_in_the_order_in_which_they_explain_each_other() -> None:
    rows = _table("failures.md", "When something fails")
    assert tuple(rows) == CLASSES
    assert tuple(name for name, row in rows.items() if row["counts against backoffLimit"] == "no") == FREE


def test_the_page_lists_every_restart_policy() -> None:
    told = {
        policy
        for row in _table("failures.md", "What is tried again")
        for policy in row.replace(" (default)", "").split(", ")
    }
    assert told == set(get_args(FailurePolicy.__annotations__["restart_policy"].__origin__))


def test_the_page_lists_every_cloud_with_the_time_from_its_notice_on() -> None:
    listed = _table("preemption.md", "Preemption notices")
    assert list(listed) == [cloud.cloud for cloud in (ComputeEngine, Ec2, Azure)]
    assert listed["Compute Engine"]["time from the notice on"] == f"{ComputeEngine.notice_s:.0f} s"
    assert listed["EC2"]["how often"] == f"every {Ec2.interval_s:.0f} s"
    assert listed["Azure"]["time from the notice on"].endswith(f"{Azure.notice_s:.0f} s at least")


def test_the_page_quotes_what_a_notice_writes() -> None:
    at, deadline = datetime(2026, 11, 18, 14, 26, 32, tzinfo=UTC), datetime(2026, 11, 18, 14, 27, 2, tzinfo=UTC)
    notice = ReceivedNotice(notice=PreemptionNotice(cloud="Compute Engine"), at=at, deadline=deadline)
    assert (DOCS / "preemption.md").read_text().count(notice.text) == 2


def test_the_list_of_long_tests_names_every_folder_that_has_some() -> None:
    tests = DOCS.parent / "tests"
    marked = {path.parent for path in tests.rglob("test_*.py") if re.search(r"mark[.]long\b", path.read_text())}
    listed = " ".join(_table("testing.md", "What every run leaves out"))
    assert len(marked) > 5
    assert {str(path.relative_to(tests.parent)) for path in marked if not _is_named(path, tests, listed)} == set()


def _is_named(folder: Path, tests: Path, text: str) -> bool:
    """The folder or one that it is in, up to the folders of tests/."""
    names = [folder, *folder.parents]
    return any(f"{name.relative_to(tests.parent)}" in text for name in names[: names.index(tests)])
