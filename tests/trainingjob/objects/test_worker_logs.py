"""The ConfigMap that keeps the end of a log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pods.template import MANAGED_BY
from holdfast.trainingjob.objects.environment import (
    LOG,
    MAX_LOG_BYTES,
    WORKER_LABEL,
    is_newer,
    worker_log_config_map,
    worker_log_selector,
)
from tests.trainingjobs import UID, training_job


def text_of(log: bytes) -> str:
    text: str = worker_log_config_map(training_job(), 0, log, {})["data"][LOG]
    return text


def test_it_is_named_after_the_attempt_and_the_worker_and_goes_with_its_job() -> None:
    body = worker_log_config_map(training_job(status={"restartCount": 2}), 1, b"no room\n", {})
    metadata = body["metadata"]
    assert (metadata["namespace"], metadata["name"]) == ("ml", "bert-log-2-1")
    assert [owner["uid"] for owner in metadata["ownerReferences"]] == [UID]
    assert metadata["labels"] == {"training-job": "bert", "holdfast.dev/attempt": "2", WORKER_LABEL: "1"}


def test_the_caches_of_the_operator_do_not_select_it() -> None:
    assert MANAGED_BY not in worker_log_config_map(training_job(), 0, b"", {})["metadata"]["labels"]


def test_it_is_found_by_the_name_of_its_job() -> None:
    labels = worker_log_config_map(training_job(), 0, b"", {})["metadata"]["labels"]
    for requirement in worker_log_selector("bert").split(","):
        name, _, value = requirement.partition("=")
        assert labels[name] == (value or labels[name])


def test_it_says_how_the_worker_ended_as_far_as_that_is_known() -> None:
    facts = {"exitCode": "3", "reason": "", "node": "gpu-3"}
    assert worker_log_config_map(training_job(), 0, b"boom\n", facts)["data"] == {
        "exitCode": "3",
        "node": "gpu-3",
        "log": "boom\n",
    }


@pytest.mark.parametrize(
    ("log", "text"),
    [
        (b"", ""),
        ("grün ✓\n".encode(), "grün ✓\n"),
        (b"\xff\xfe\x00", "��\x00"),
        (b"50%\r60%\r", "50%\r60%\r"),
    ],
)
def test_what_is_not_text_is_replaced_and_all_else_stays(log: bytes, text: str) -> None:
    assert text_of(log) == text


def test_of_a_long_log_the_end_is_kept() -> None:
    assert text_of(b"a" + b"b" * MAX_LOG_BYTES) == "b" * MAX_LOG_BYTES


@given(st.binary(max_size=100), st.integers(0, 2 * MAX_LOG_BYTES))
def test_it_never_outgrows_what_a_config_map_may_hold(pattern: bytes, size: int) -> None:
    log = (pattern * (size // max(len(pattern), 1) + 1))[:size]
    assert len(text_of(log).encode()) <= 3 * MAX_LOG_BYTES < 2**20


A, B = {"pod": "a"}, {"pod": "b"}
ENDED = {"finishedAt": "2026-01-01T00:01:00Z"}


def test_the_log_of_an_attempts_next_pod_stands_beside_those_of_earlier_ones() -> None:
    job = training_job()
    first = worker_log_config_map(job, 0, b"one\n", A)["data"]
    second = worker_log_config_map(job, 0, b"two\n", B, stored=first)["data"]
    assert second == {"pod": "b", "earlier": "one\n", "log": "two\n"}
    again = worker_log_config_map(job, 0, b"two\nthree\n", {**B, **ENDED}, stored=second)["data"]
    assert (again["earlier"], again["log"]) == ("one\n", "two\nthree\n")
    third = worker_log_config_map(job, 0, b"four\n", {"pod": "c"}, stored={**again, "log": "x" * MAX_LOG_BYTES})["data"]
    assert (third["earlier"], third["log"]) == ("x" * MAX_LOG_BYTES, "four\n")


@pytest.mark.parametrize(
    ("stored", "facts", "newer"),
    [
        (A, A, False),
        (A, {**A, **ENDED}, True),
        ({**A, **ENDED}, {**A, **ENDED}, False),
        ({**A, **ENDED}, A, False),
        (A, B, True),
        ({**A, **ENDED}, B, True),
    ],
)
def test_a_log_is_stored_again_for_another_pod_and_when_the_pod_has_ended(
    stored: dict[str, str], facts: dict[str, str], newer: bool
) -> None:
    assert is_newer(stored, facts) is newer
