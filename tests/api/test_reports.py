"""What a report may hold, and what it is told when it holds something else."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.reports import (
    LARGEST_BODY,
    MOST_ENTRIES,
    OLDEST_S,
    InvalidReport,
    ProgressReport,
    ReportReply,
    decode,
)
from tests.trainingjob.reports.reports import batch, checkpoint, ended, resumed, step

PLAIN: dict[str, Any] = msgspec.to_builtins(batch())
SAVED: dict[str, Any] = {"path": "x", "epoch": 1, "outcome": "failed", "at": 1}
SECRET = "hunter2"


def body(**more: Any) -> bytes:
    return msgspec.json.encode({**PLAIN, **more})


def with_entry(text: str) -> bytes:
    return body(progress=[]).replace(b'"progress":[]', b'"progress":[' + text.encode() + b"]")


def refusal(text: bytes) -> str:
    with pytest.raises(InvalidReport) as refused:
        decode(text)
    return str(refused.value)


def test_a_heartbeat_is_a_batch_without_entries() -> None:
    assert decode(msgspec.json.encode(batch())) == batch()


def test_everything_that_is_written_is_read_again() -> None:
    told = batch(
        ended(3, of=10, loss=0.4, accuracy=0.9),
        step(4, 7, 100, lr=1e-4),
        checkpoints=(checkpoint(3, "uploaded", valid_count=2), checkpoint(2, "failed", reason="disk full")),
        resumed=resumed(2),
    )
    assert decode(msgspec.json.encode(told)) == told


def test_fields_are_written_as_other_programs_expect_them() -> None:
    told = msgspec.json.decode(msgspec.json.encode(batch(ended(3, of=10, loss=0.5), resumed=resumed(2))))
    assert told["sentAt"] == 5000.0
    assert told["progress"] == [{"epoch": 3, "totalEpochs": 10, "metrics": {"loss": 0.5}, "at": 5000.0}]
    assert told["resumed"] == {"path": "attempt-1/checkpoint-epoch-2", "epoch": 2}
    answer = msgspec.json.decode(msgspec.json.encode(ReportReply(attempt=2, attempt_over=False)))
    assert answer == {
        "attempt": 2,
        "over": False,
        "orderly": False,
        "stop": "",
        "endedWell": False,
        "save": "",
        "keptEpoch": 0,
        "backup": None,
        "backupWithdrawn": False,
    }


def test_fields_of_a_newer_sidecar_are_passed_over() -> None:
    assert decode(body(invented=[1, {"x": SECRET}])) == batch()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 1000, "Expected `object`, got `array`"),
        (body()[:-1] + b',"x":' + b"[" * 60_000, "not valid JSON"),
        (with_entry('{"epoch": 1, "at": 1, "metrics": {"\\ud800": 1}}'), "not valid JSON"),
        (b"null", "Expected `object`, got `null`"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `job`"),
        (body(attempt=-1), "`int` >= 0 at `$.attempt`"),
        (body(index="0"), "Expected `int`, got `str` at `$.index`"),
        (body(sequence=0), "`int` >= 1 at `$.sequence`"),
        (body(job=""), "length >= 1 at `$.job`"),
        (body(uid="x" * 300), "length <= 253 at `$.uid`"),
        (body(sentAt=-1), "`float` >= 0.0 at `$.sentAt`"),
        (with_entry('{"epoch": -3, "at": 1}'), "`int` >= 0 at `$.progress[0].epoch`"),
        (with_entry('{"epoch": 1.5, "at": 1}'), "Expected `int`, got `float`"),
        (with_entry('{"epoch": 99999999999999999999999, "at": 1}'), "`int` <= 2147483647"),
        (with_entry('{"epoch": 1, "totalEpochs": 0, "at": 1}'), "`int` >= 1 at `$.progress[0].totalEpochs`"),
        (with_entry('{"epoch": 1, "step": -1, "at": 1}'), "`int` >= 0 at `$.progress[0].step`"),
        (with_entry('{"epoch": 1, "at": 1, "metrics": {"loss": NaN}}'), "not valid JSON"),
        (with_entry('{"epoch": 1, "at": 1, "metrics": {"loss": Infinity}}'), "not valid JSON"),
        (with_entry('{"epoch": 1, "at": 1, "metrics": {"loss": 1e999}}'), "not allowed at `$.progress[0].metrics"),
        (with_entry('{"epoch": 1, "at": 1, "metrics": {"loss": 1e39}}'), "`float` <= 3.5e+38"),
        (with_entry('{"epoch": 1, "at": 1, "metrics": {"loss": -1e39}}'), "`float` >= -3.5e+38"),
        (with_entry('{"epoch": 1, "at": 1, "metrics": {"loss": "0.1"}}'), "Expected `float`, got `str`"),
        (with_entry('{"epoch": 1, "at": 1, "metrics": {"loss": true}}'), "Expected `float`, got `bool`"),
        (with_entry('{"epoch": 1, "at": 1, "metrics": {"": 1}}'), "matching regex"),
        (with_entry('{"epoch": 1, "at": 1, "metrics": {"a b": 1}}'), "matching regex"),
        (with_entry('{"epoch": 1, "at": 1, "metrics": {"a\\n": 1}}'), "matching regex"),
        (with_entry('{"epoch": 1, "at": 1, "metrics": {"' + "a" * 65 + '": 1}}'), "length <= 64"),
        (body(progress=[{"epoch": 1, "at": 1, "metrics": dict.fromkeys(map("m{}".format, range(65)), 1)}]), "<= 64"),
        (body(checkpoints=[{**SAVED, "outcome": "lost"}]), "not allowed at `$.checkpoints[0].outcome`"),
        (body(checkpoints=[{**SAVED, "path": "a\nb"}]), "matching regex"),
        (body(checkpoints=[{**SAVED, "path": ""}]), "matching regex"),
        (body(checkpoints=[{**SAVED, "reason": "r" * 1025}]), "length <= 1024"),
        (body(progress=[{"epoch": 1, "at": 1}] * (MOST_ENTRIES + 1)), "length <= 256"),
        (b" " * (LARGEST_BODY + 1), "larger than 65536 bytes"),
    ],
)
def test_what_is_not_a_report_is_refused_in_one_sentence(text: bytes, says: str) -> None:
    told = refusal(text)
    assert says in told
    assert "\n" not in told


def test_both_kinds_of_entries_count_against_one_bound() -> None:
    entries: dict[str, Any] = {"progress": [{"epoch": 1, "at": 1}] * MOST_ENTRIES}
    assert len(decode(body(**entries)).progress) == MOST_ENTRIES
    entries["checkpoints"] = [{"path": "x", "epoch": 1, "outcome": "completed", "at": 1}]
    assert "more than 256 entries" in refusal(body(**entries))


@pytest.mark.parametrize(
    "text",
    [
        body(checkpoints=[{"path": "x", "epoch": 1, "outcome": SECRET, "at": 1}]),
        body(checkpoints=[{"path": "x", "epoch": 1, "outcome": f"a - at {SECRET}", "at": 1}]),
        body(progress=[{"epoch": SECRET, "at": 1}]),
        with_entry('{"epoch": 1, "at": 1, "metrics": {"a ' + SECRET + '": 1}}'),
        b'{"job": "' + SECRET.encode(),
    ],
)
def test_a_refusal_repeats_nothing_of_the_report(text: bytes) -> None:
    assert SECRET not in refusal(text)


@given(st.binary(max_size=300))
def test_no_bytes_do_more_harm_than_a_refusal(text: bytes) -> None:
    refusal(text)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([*sorted(PLAIN), "progress", "checkpoints", "resumed"]), _json)
def test_a_report_with_anything_in_any_place_is_read_or_refused(name: str, value: object) -> None:
    text = msgspec.json.encode({**PLAIN, name: value})
    with suppress(InvalidReport):
        told = decode(text)
        assert decode(msgspec.json.encode(told)) == told


@pytest.mark.parametrize(
    ("entry", "position"),
    [
        (ended(0), 0.0),
        (ended(3), 3.0),
        (step(1, 0), 0.0),
        (step(3, 50), 2.0),
        (step(3, 50, 200), 2.25),
        (step(3, 200, 200), 3.0),
        (step(3, 900, 200), 3.0),
        (step(0, 1, 2), 0.5),
    ],
)
def test_a_position_is_epochs_done_and_a_part_of_the_next(entry: ProgressReport, position: float) -> None:
    assert entry.position == position


def test_the_age_of_an_entry_is_measured_by_one_clock_and_never_negative() -> None:
    told = batch(ended(1), age_s=7.0)
    assert told.age_s(ended(1)) == 7.0
    assert told.age_s(ended(1, at=9_999.0)) == 0.0


def test_an_entry_from_before_a_clock_was_set_is_a_year_old_at_most() -> None:
    told = batch(ended(1), age_s=0.0)
    assert msgspec.structs.replace(told, sent_at=2.0**53).age_s(ended(1, at=0.0)) == OLDEST_S
