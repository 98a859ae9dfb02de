"""Who may take part."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.trainer.connection import Handshake, decode, rejection_reason
from holdfast.trainer.settings import RankInfo

HUB = RankInfo(rank=0, size=4, host="here", port=1)


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(1, 1000), st.text())
def test_a_hello_is_read_as_it_was_said(rank: int, size: int, digest: str) -> None:
    hello = Handshake(rank, size, digest)
    assert decode(bytearray(hello.encode())) == hello


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_hello_or_nothing(content: bytes) -> None:
    assert decode(bytearray(content)) is None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"holdfast": 2, "rank": 1, "size": 4, "digest": "d"},
        {"holdfast": 1, "size": 4, "digest": "d"},
        {"holdfast": 1, "rank": "first", "size": 4, "digest": "d"},
        {"holdfast": 1, "rank": None, "size": 4, "digest": "d"},
    ],
)
def test_a_hello_of_another_form_is_nothing(fields: dict[str, object]) -> None:
    assert decode(bytearray(json.dumps(fields).encode())) is None


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_worker_of_this_training_is_let_in(rank: int) -> None:
    assert rejection_reason(Handshake(rank, 4, "same"), HUB, "same", set()) == ""


@pytest.mark.parametrize(
    ("hello", "present", "said"),
    [
        (Handshake(1, 5, "same"), set(), "no place for worker 1 of 5"),
        (Handshake(0, 4, "same"), set(), "no place for worker 0 of 4"),
        (Handshake(4, 4, "same"), set(), "no place for worker 4 of 4"),
        (Handshake(1, 4, "other"), set(), "not those of worker 0"),
        (Handshake(1, 4, "same"), {1}, "there is a worker 1 already"),
    ],
)
def test_any_other_worker_gets_the_reason(hello: Handshake, present: set[int], said: str) -> None:
    assert said in rejection_reason(hello, HUB, "same", present)
