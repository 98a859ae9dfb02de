"""How an object reads when it is described."""

from datetime import UTC, datetime
from typing import Any

from holdfast.api.meta import ObjectMeta
from holdfast.cli.describe import described
from holdfast.cluster.resources import RawObject

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def lines(events: list[dict[str, Any]] | None = None, **parts: Any) -> list[str]:
    metadata = {"name": "a", "creationTimestamp": "2026-01-01T23:59:00Z", **parts.pop("metadata", {})}
    return list(
        described(RawObject(metadata=ObjectMeta(name="a"), document={"metadata": metadata, **parts}), events or [], NOW)
    )


def test_an_object_with_nothing_but_a_name_is_a_few_lines() -> None:
    assert lines(kind="Thing", apiVersion="v1") == [
        "Name:          a",
        "Labels:        <none>",
        "Annotations:   <none>",
        "API Version:   v1",
        "Kind:          Thing",
        "Age:           60s",
        "Metadata:",
        "  Creation Timestamp:  2026-01-01T23:59:00Z",
        "Events:  <none>",
    ]


def test_labels_stand_under_one_another_and_the_note_of_apply_is_left_out() -> None:
    metadata = {
        "labels": {"b": "2", "a": "1"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "x"},
    }
    shown = lines(metadata=metadata)
    assert shown[1:4] == ["Labels:        a=1", "               b=2", "Annotations:   mine=x"]
    assert not any("last-applied" in line for line in shown)


def test_parts_are_indented_and_elements_begin_with_a_dash() -> None:
    spec = {
        "numWorkers": 2,
        "on": True,
        "args": ["one", 2],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "from": {"key": "k"}}],
        "nvidia.com/gpu": "1",
        "empty": {},
    }
    shown = lines(spec=spec)
    begin = shown.index("Spec:")
    assert shown[begin + 1 : -1] == [
        "  Num Workers:     2",
        "  On:              true",
        "  Args:",
        "    one",
        "    2",
        "  Env:",
        "    - Name:   A",
        "      Value:  1",
        "    - Name:  B",
        "      From:",
        "        Key:  k",
        "  nvidia.com/gpu:  1",
        "  Empty:           <none>",
    ]


def test_a_status_has_measured_numbers_with_four_digits_and_a_spec_its_own() -> None:
    shown = lines(spec={"rate": 0.000123456}, status={"metrics": {"loss": 0.2275489568570467}, "all": [0.123456]})
    assert [line.strip() for line in shown if "." in line] == ["Rate:  0.000123456", "Loss:  0.2275", "0.1235"]


def test_texts_keep_their_lines_and_do_not_command_the_terminal() -> None:
    shown = lines(spec={"script": "first\n\x1b[31msecond"})
    begin = shown.index("Spec:")
    assert shown[begin + 1 : begin + 3] == ["  Script:  first", "    \\x1b[31msecond"]


def test_of_a_secret_only_the_lengths_are_shown() -> None:
    shown = lines(kind="Secret", data={"token": "c2VjcmV0"}, type="Opaque")
    assert "  token:  8 characters" in shown
    assert not any("c2VjcmV0" in line for line in shown)


def test_the_keys_of_a_config_map_are_shown_as_they_are() -> None:
    shown = lines(kind="ConfigMap", data={"logLevel": "low"})
    assert shown[shown.index("Data:") + 1] == "  logLevel:  low"


def test_conditions_and_events_are_tables() -> None:
    conditions = [{"type": "Ready", "status": "True", "reason": "Fine", "lastTransitionTime": "2026-01-01T23:59:30Z"}]
    events = [
        {
            "metadata": {},
            "type": "Warning",
            "reason": "Restarted",
            "message": "a\nb",
            "count": 2,
            "firstTimestamp": "2026-01-01T23:58:00Z",
            "lastTimestamp": "2026-01-01T23:59:50Z",
            "source": {"component": "holdfast"},
        }
    ]
    shown = lines(events, status={"phase": "Running", "conditions": conditions})
    assert shown[-8:] == [
        "Status:",
        "  Phase:  Running",
        "Conditions:",
        "  TYPE    STATUS   REASON   AGE   MESSAGE",
        "  Ready   True     Fine     30s",
        "Events:",
        "  TYPE      REASON      AGE                FROM       MESSAGE",
        "  Warning   Restarted   10s (x2 over 2m)   holdfast   a b",
    ]


def test_nothing_of_the_object_commands_the_terminal() -> None:
    evil = "\x1b[2J\nfake:  line\x07"
    told = {"type": evil, "reason": evil, "message": evil, "metadata": {}, "source": {"component": evil}}
    shown = lines(
        [told],
        metadata={"labels": {evil: evil}, "annotations": {evil: evil}},
        spec={evil: evil, "parts": {evil: [evil, {evil: evil}, [evil]]}},
        data={evil: evil},
        status={evil: evil, "conditions": [{"type": evil, "status": evil, "reason": evil, "message": evil}]},
    )
    assert all(line.isprintable() for line in shown)
    assert not any(line.startswith("fake") for line in shown)
