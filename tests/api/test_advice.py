"""A manifest that is refused, and what its author is told to write."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.api.advice import PATTERN_WORDS, advice, did_you_mean
from holdfast.api.kinds import KINDS
from holdfast.api.schema.crd import Schema
from holdfast.api.schema.validation import schema_of, validate_object
from holdfast.api.schema.violations import Cause, ValidationFailed
from tests.api.cases import CASES
from tests.api.cases.objects import JSON, training_job

DURATION = 'write a duration from a second to a year with its units, such as "90s", "30m" or "1h30m"'


def told(document: JSON) -> list[str]:
    with pytest.raises(ValidationFailed) as refusal:
        validate_object(document)
    return advice(document, refusal.value.causes)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"command": "python train.py"}, "spec.command is text: write command: [python, train.py]"),
        ({"command": "python t.py --n 3"}, "spec.command is text: write command: [python, t.py, --n, '3']"),
        ({"command": "cd a && b"}, "spec.command is text: write command: [sh, -c, cd a && b]"),
        ({"command": "echo 'a"}, "spec.command is text: write command: [sh, -c, echo 'a]"),
        ({"command": ["a", None]}, "spec.command[1] is empty: write something, or take it out"),
        ({"env": {"A": "b"}}, "spec.env is a map: write a list, each entry with '- ' before it"),
        (
            {"framework": "torch"},
            'spec.framework is "torch": did you mean pytorch? It may be jax, pytorch or tensorflow',
        ),
        ({"framework": "mxnet"}, 'spec.framework is "mxnet": write jax, pytorch or tensorflow'),
        ({"numWorker": 2}, "spec.numWorker is no field that holdfast knows: did you mean numWorkers?"),
        ({"epochs": 2}, "spec.epochs is no field that holdfast knows: it belongs to spec.hyperparameters"),
        (
            {"networking": {"zebra": 1}},
            "spec.networking.zebra is no field that holdfast knows: there are backend, masterPort, rdmaEnabled",
        ),
        ({"numWorkers": "2"}, "spec.numWorkers is text: write numWorkers: 2, without quotes"),
        ({"numWorkers": "two"}, "spec.numWorkers is text: write a whole number, such as 2"),
        ({"numWorkers": 1.5}, "spec.numWorkers is 1.5: write a whole number"),
        ({"numWorkers": 101}, "spec.numWorkers is 101: write at most 100"),
        ({"numWorkers": 0}, "spec.numWorkers is 0: write at least 1"),
        ({"suspend": "true"}, "spec.suspend is text: write suspend: true, without quotes"),
        ({"model": 5}, 'spec.model is a number: put it in quotes: model: "5"'),
        ({"model": True}, 'spec.model is a boolean: put it in quotes: model: "true"'),
        ({"model": None}, "spec.model is missing"),
        ({"networking": []}, "spec.networking is a list: write its fields below it: backend, masterPort, rdmaEnabled"),
        (
            {"resources": {"limits": {"memory": "32 GB"}}},
            'spec.resources.limits.memory is "32 GB": write an amount such as 500m, 2 or 1.5Gi',
        ),
        (
            {"resources": {"limits": {"nvidia.com/gpu": "one"}}},
            'spec.resources.limits.nvidia.com/gpu is "one": write an amount such as 500m, 2 or 1.5Gi',
        ),
        (
            {"resources": {"limits": {"cpu": True}}},
            "spec.resources.limits.cpu is a boolean: write an amount such as 500m, 2 or 1.5Gi",
        ),
        ({"checkpoint": {"interval": "soon"}}, f'spec.checkpoint.interval is "soon": {DURATION}'),
        ({"checkpoint": {"interval": 90}}, f"spec.checkpoint.interval is a number: {DURATION}"),
        (
            {"checkpoint": {"storage": {"type": "s3"}}},
            "spec.checkpoint.storage.s3Bucket is missing: storage of type s3 needs s3Bucket",
        ),
        ({"env": [{"name": "A"}, {"name": "A"}]}, 'spec.env[1] is there twice: {"name":"A"}'),
    ],
    ids=str,
)
def test_a_wrong_value_is_answered_with_a_right_one(spec: dict[str, Any], sentence: str) -> None:
    assert sentence in told(training_job(spec))


def test_the_value_of_a_variable_is_not_repeated() -> None:
    (sentence,) = told(training_job({"env": [{"name": "TOKEN", "value": 271828}]}))
    assert sentence == "spec.env[0].value is a number: put it in quotes"


@pytest.mark.parametrize("case", [case for case in CASES if case.field], ids=lambda case: case.title)
def test_no_refusal_shows_a_regular_expression_or_a_schema_s_words(case: Any) -> None:
    for sentence in told(case.document):
        assert case.field in " ".join(told(case.document))
        for jargon in (" in body ", "should match", "must be of type", "Invalid value", "Unsupported value", "^"):
            assert jargon not in sentence


def test_what_the_api_server_says_of_a_name_loses_its_regular_expression() -> None:
    message = (
        'Invalid value: "a_b": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters '
        "(e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
    )
    (sentence,) = advice({"apiVersion": "v1", "kind": "ConfigMap"}, [Cause("metadata.name", message)])
    assert "regex" not in sentence
    assert "example.com" in sentence


@pytest.mark.parametrize(("word", "near"), [("Torch", "pytorch"), ("NEVER", "Never"), ("", ""), ("zebra", "")])
def test_the_nearest_word_is_found_whatever_its_case(word: str, near: str) -> None:
    assert did_you_mean(word, ["pytorch", "Never"]) == near


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_pattern_of_a_spec_has_an_example(kind: Any) -> None:
    schema = schema_of({"apiVersion": kind.api_version, "kind": kind.kind})
    assert schema
    assert [pattern for pattern in _patterns(schema["properties"]["spec"]) if pattern not in PATTERN_WORDS] == []


def _patterns(schema: Schema) -> Iterator[str]:
    if "pattern" in schema:
        yield schema["pattern"]
    for child in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(child, dict):
            yield from _patterns(child)
