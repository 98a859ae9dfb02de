"""A model and its schema are one: what the schema lets pass, the model decodes, and gives back unchanged."""

from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.api.checkpoint import Checkpoint
from holdfast.api.kind import Kind
from holdfast.api.kinds import KINDS, kind_of
from holdfast.api.schema.crd import Schema, object_schema
from holdfast.api.schema.validation import validate_object
from holdfast.api.schema.violations import schema_violations, with_defaults
from holdfast.api.trainingjob import TrainingJob, TrainingJobSpec
from tests.api.cases import CASES, Case
from tests.api.cases.objects import JSON, training_job

ACCEPTED = [case for case in CASES if not case.field]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """Values that the schema accepts, rules aside."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return st.integers(0, 1000) | _texts(schema)
    match schema["type"]:
        case "object" if "additionalProperties" in schema:
            return st.dictionaries(st.text(max_size=9), values(schema["additionalProperties"]), max_size=2)
        case "object":
            return _objects(schema)
        case "array":
            return st.lists(values(schema["items"]), min_size=schema.get("minItems", 0), max_size=2)
        case "integer":
            return st.integers(schema.get("minimum", -100), schema.get("maximum", 2**31 - 1))
        case "number":
            return st.floats(0.01, 1) | st.just(1)
        case "boolean":
            return st.booleans()
        case _:
            return _texts(schema)


@st.composite
def _objects(draw: st.DrawFn, schema: Schema) -> JSON:
    """Everything that is required, and one field more."""
    wanted = {*schema.get("required", ()), draw(st.sampled_from([*schema["properties"]]))}
    return {name: draw(values(field)) for name, field in schema["properties"].items() if name in wanted}


def _texts(schema: Schema) -> st.SearchStrategy[str]:
    if schema.get("format") == "date-time":
        return st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5+02:00"])
    if "pattern" in schema:
        # Python's $ also matches before a last line break, which the server's does not.
        pattern = schema["pattern"].removesuffix("$") + (r"\Z" if schema["pattern"].endswith("$") else "")
        limit = schema.get("maxLength", 100)
        return st.from_regex(pattern, alphabet=st.characters(max_codepoint=126)).filter(lambda text: len(text) <= limit)
    return st.text(min_size=schema.get("minLength", 0), max_size=min(schema.get("maxLength", 9), 9))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_what_the_schema_accepts_the_model_decodes_and_keeps(kind: Kind[Any], data: st.DataObject) -> None:
    part = data.draw(st.sampled_from(["spec", "status"]))
    schema = _section(kind.kind, part)
    drawn = with_defaults(data.draw(values(schema)), schema)
    assert [str(cause) for cause in schema_violations(drawn, schema) if "Duplicate value" not in cause.message] == []
    model = {field.encode_name: field.type for field in msgspec.structs.fields(kind.model)}[part]
    decoded = msgspec.convert(drawn, model)
    assert msgspec.convert(with_defaults(msgspec.to_builtins(decoded), schema), model) == decoded


@cache
def _section(kind: str, part: str) -> Schema:
    schema: Schema = next(object_schema(known) for known in KINDS if known.kind == kind)["properties"][part]
    return schema


@settings(max_examples=200, deadline=None)
@given(where=st.sampled_from(["numWorkers", "env", "checkpoint", "resources", "podTemplate", "suspend"]), what=ANYTHING)
def test_what_the_model_can_not_decode_the_schema_refuses(where: str, what: Any) -> None:
    schema = _section("TrainingJob", "spec")
    spec = with_defaults({**training_job()["spec"], where: what}, schema)
    try:
        msgspec.convert(spec, TrainingJobSpec)
    except msgspec.ValidationError:
        assert list(schema_violations(spec, schema)) != []


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.title)
def test_an_accepted_object_survives_its_model(case: Case) -> None:
    admitted = validate_object(case.document)
    kind = kind_of(admitted["apiVersion"], admitted["kind"])
    assert kind is not None
    model = msgspec.json.decode(msgspec.json.encode(admitted), type=kind.model)
    again: JSON = msgspec.json.decode(msgspec.json.encode(model))
    restored = validate_object({"apiVersion": admitted["apiVersion"], "kind": admitted["kind"], **again})
    assert msgspec.convert(restored, kind.model) == model


def test_a_field_that_is_not_written_differs_from_one_that_is() -> None:
    silent = msgspec.convert(validate_object(training_job()), TrainingJob)
    written = msgspec.convert(validate_object(training_job({"gpusPerWorker": 1, "checkpoint": {}})), TrainingJob)
    assert (silent.spec.gpus_per_worker, written.spec.gpus_per_worker) == (None, 1)
    assert (silent.spec.checkpoint, written.spec.checkpoint) == (None, Checkpoint())
    assert silent.status is None


def test_a_model_reads_past_fields_of_a_later_version() -> None:
    text = msgspec.json.encode({**training_job({"novelty": {"a": 1}}), "status": {"state": "Running", "mood": "good"}})
    assert msgspec.json.decode(text, type=TrainingJob).spec.num_workers == 2
