"""What a line of a training's own tells, whatever is in it."""

import json
import math
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api import reports
from holdfast.api.reports import ProgressReport, WorkerReport
from holdfast.sidecar.progress import InvalidProgress, parse_line


@pytest.mark.parametrize(
    ("line", "epoch", "total", "step", "steps", "metrics"),
    [
        ('{"epoch": 3}', 3, None, None, None, {}),
        ('{"epoch": 0, "totalEpochs": 6, "loss": 2.5}', 0, 6, None, None, {"loss": 2.5}),
        ('{"epoch": 3, "epochs": 10, "step": 120, "steps": 400, "loss": 1}', 3, 10, 120, 400, {"loss": 1.0}),
        ('{"epoch": 3.0, "total_epochs": 9.0}', 3, 9, None, None, {}),
        ('{"epoch": 3, "epochs": 0, "steps": 0}', 3, None, None, None, {}),
        ('{"epoch": 3, "loss": NaN, "accuracy": 0.5}', 3, None, None, None, {"accuracy": 0.5}),
        ('{"epoch": 3, "loss": Infinity, "a": -Infinity, "b": 1e39, "c": -1e39}', 3, None, None, None, {}),
        ('{"epoch": 3, "loss": "0.5", "best": true, "all": [1], "of": {"x": 1}, "no": null}', 3, None, None, None, {}),
        ('{"epoch": 3, "a b": 1, "": 2, "9x": 3, "val/loss": 4}', 3, None, None, None, {"val/loss": 4.0}),
        ('{"epoch": 3, "step": -1, "epochs": -2}', 3, None, None, None, {}),
    ],
)
def test_the_usable_part_of_a_line_is_taken(
    line: str, epoch: int, total: int | None, step: int | None, steps: int | None, metrics: dict[str, float]
) -> None:
    expected = ProgressReport(epoch=epoch, total_epochs=total, step=step, steps=steps, metrics=metrics, at=7.0)
    assert parse_line(line.encode(), 7.0) == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "not JSON"),
        ("epoch 3", "not JSON"),
        ('{"epoch": 3', "not JSON"),
        ("\udcff", "not JSON"),
        ("[" * 5000, "not JSON"),
        ("[3]", "not a JSON object"),
        ("3", "not a JSON object"),
        ('{"loss": 0.5}', "no epoch"),
        ('{"epoch": -1}', "no epoch"),
        ('{"epoch": 1.5}', "no epoch"),
        ('{"epoch": NaN}', "no epoch"),
        ('{"epoch": 1e30}', "no epoch"),
        ('{"epoch": true}', "no epoch"),
        ('{"epoch": "3"}', "no epoch"),
    ],
)
def test_a_line_without_any_use_is_refused_in_a_sentence(line: str, said: str) -> None:
    with pytest.raises(InvalidProgress, match=said):
        parse_line(line.encode(errors="surrogateescape"), 7.0)


def test_no_more_metrics_are_taken_than_a_report_holds() -> None:
    facts = {"epoch": 1, **{f"metric_{number}": number for number in range(500)}}
    assert len(parse_line(json.dumps(facts).encode(), 1.0).metrics) == reports.MOST_METRICS


numbers = st.one_of(st.integers(), st.floats(), st.integers(-5, 5), st.just(10**400))
names = st.one_of(st.sampled_from(["epoch", "epochs", "step", "steps", "loss", "totalEpochs"]), st.text(max_size=80))


@given(st.dictionaries(names, st.one_of(numbers, st.text(max_size=5), st.booleans(), st.none()), max_size=12))
def test_what_is_taken_from_any_object_can_be_reported(facts: dict[str, object]) -> None:
    try:
        entry = parse_line(json.dumps(facts).encode(), 5.0)
    except InvalidProgress:
        return
    batch = WorkerReport(
        job="j", namespace="n", uid="u", attempt=0, index=0, run="r", sequence=1, sent_at=6.0, progress=(entry,)
    )
    assert reports.decode(msgspec.json.encode(batch)).progress == (entry,)
    assert all(math.isfinite(value) for value in entry.metrics.values())


@given(st.binary(max_size=200))
def test_no_bytes_at_all_are_a_surprise(line: bytes) -> None:
    with suppress(InvalidProgress):
        assert parse_line(line, 1.0).epoch >= 0
