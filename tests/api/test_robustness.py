"""Whatever is submitted, the answer is an object or a refusal."""

import json
import math
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from holdfast.api.schema.validation import validate_object
from holdfast.api.schema.violations import Cause, ValidationFailed
from tests.api.cases import CASES, CHANGES, merged
from tests.api.cases.objects import JSON, training_job
from tests.api.test_validate import VALIDATE

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
)
ACCEPTED = [case.document for case in CASES if not case.field]


@st.composite
def mutilated(draw: st.DrawFn, document: JSON) -> JSON:
    """The document with one value, anywhere in it, replaced by anything."""
    result = deepcopy(document)
    place: Any = result
    while True:
        step = draw(st.sampled_from([*place] if isinstance(place, dict) else range(len(place))))
        inner = place[step]
        if isinstance(inner, dict | list) and inner and draw(st.booleans()):
            place = inner
            continue
        place[step] = draw(ANYTHING)
        return result


def outcome(document: JSON, old: JSON | None = None) -> tuple[JSON | None, tuple[Cause, ...]]:
    try:
        return validate_object(document, old), ()
    except ValidationFailed as refusal:
        return None, refusal.causes


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ACCEPTED).flatmap(mutilated))
def test_a_mutilated_object_is_admitted_or_refused(document: JSON) -> None:
    admitted, causes = outcome(document)
    assert admitted is None or outcome(admitted) == (admitted, ())
    assert (admitted is None) is bool(causes)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(CHANGES), st.data())
def test_a_mutilated_update_is_admitted_or_refused(change: Any, data: st.DataObject) -> None:
    stored = {**validate_object(change.document), "status": change.status}
    update = data.draw(mutilated(merged(stored, change.patch)))
    admitted, causes = outcome(update, stored)
    assert (admitted is None) is bool(causes)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["apiVersion", "kind", "metadata", "spec", "status", "x"]), ANYTHING))
def test_no_object_at_all_is_refused(document: JSON) -> None:
    with pytest.raises(ValidationFailed):
        validate_object(document)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_the_command_answers_any_bytes_with_a_line_and_a_code(text: bytes) -> None:
    result = CliRunner().invoke(VALIDATE, ["-f", "-"], input=text)
    assert result.exit_code in (0, 1, 2)
    assert isinstance(result.exception, SystemExit | None)
    assert result.output.startswith("standard input: ")


@pytest.mark.parametrize("number", [2**31, 2**63, 2**64, -(2**63) - 1, 10**40, 10**400, 1e300, math.inf, math.nan])
@pytest.mark.parametrize("field", ["numWorkers", "gpusPerWorker", "ttlSecondsAfterFinished"])
def test_a_number_that_no_field_can_hold_is_refused(field: str, number: float) -> None:
    if field == "ttlSecondsAfterFinished" and number == 2**31:
        return
    with pytest.raises(ValidationFailed, match=field):
        validate_object(training_job({field: number}))


@pytest.mark.parametrize("number", [10**400, math.inf, -math.inf, math.nan])
def test_a_learning_rate_that_no_double_can_hold_is_refused(number: float) -> None:
    with pytest.raises(ValidationFailed, match=r"learningRate.*must be of type number"):
        validate_object(training_job({"hyperparameters": {"learningRate": number}}))


@pytest.mark.parametrize("text", ['{"a": "\\ud800"}', 'a: "\\ud800"'])
def test_half_a_character_can_not_be_read(text: str) -> None:
    result = CliRunner().invoke(VALIDATE, ["-f", "-"], input=text)
    assert result.exit_code == 2
    assert "half a character" in result.stderr


def test_a_name_that_breaks_lines_stays_on_its_line() -> None:
    document = training_job(name="two\nlines\x1b[31m")
    result = CliRunner().invoke(VALIDATE, ["-f", "-"], input=json.dumps(document))
    assert result.exit_code == 1
    assert all(line.startswith("standard input: ") for line in result.stdout.splitlines())
    assert "\x1b" not in result.stdout


def laughs(depth: int) -> str:
    return "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]" for n in range(depth))


EVIL = {
    "nothing": "",
    "a comment": "# nothing",
    "a word": "hello",
    "a list": "[1, 2, 3]",
    "an open list": "[1, 2",
    "an open string": 'kind: "Training',
    "deep lists": f"a: {'[' * 20_000}{']' * 20_000}",
    "deep maps": f"{'{a: ' * 5_000}x{'}' * 5_000}",
    "deep JSON": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "an alias in itself": "a: &a [*a]",
    "aliases of aliases": laughs(9),
    "an unknown alias": "a: *nobody",
    "two equal keys": "kind: a\nkind: b",
    "a list as key": "? [a]\n: b",
    "a merge of nothing": "<<: [1]",
    "5,000 digits": f"numWorkers: {'9' * 5_000}",
    "20,000 binary digits": f"numWorkers: 0b{'1' * 20_000}",
    "a number beyond all": "learningRate: 1e999999",
    "no number": "learningRate: .nan",
    "a date that is none": "metadata: {name: 2024-13-45}",
    "an object of Python's": "!!python/object/apply:os.system [ls]",
    "a set": "!!set {a, b}",
    "bytes": "a: !!binary aGVsbG8=",
    "half a character": 'a: "\\ud800"',
    "NUL": "a: b\0c",
    "a terminal's command": 'kind: "\\e[2J\\e]0;owned\\a"',
    "tabs": "a:\n\t- b",
    "a kind that is a list": "apiVersion: [v1]\nkind: {a: b}",
    "metadata that is a word": "apiVersion: ml.example.com/v1\nkind: TrainingJob\nmetadata: bert\nspec: 1",
    "a List of lists": "kind: List\nitems: [[[]], null, 1]",
    "a List of itself": "kind: List\nitems: &a [{kind: List, items: *a}]",
    "a megabyte of key": f"{'k' * 2**20}: 1",
    "a name of 100,000 letters": json.dumps(training_job(name="n" * 100_000)),
}


@pytest.mark.parametrize("text", EVIL.values(), ids=EVIL.keys())
def test_an_evil_manifest_is_answered_in_lines_without_a_traceback(text: str) -> None:
    assert len(EVIL) >= 27
    result = CliRunner().invoke(VALIDATE, ["-f", "-"], input=text)
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit)
    assert result.output
    assert all(line.startswith("standard input: ") and line.isprintable() for line in result.output.splitlines())
