import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.local.controllers.job_pods import format_indexes, parse_indexes

# (the indexes, how they are written): as the API server's own controller does it.
CASES = [
    (set(), ""),
    ({0}, "0"),
    ({0, 1}, "0,1"),
    ({0, 1, 2}, "0-2"),
    ({0, 2}, "0,2"),
    ({1, 2, 3, 5, 6, 8}, "1-3,5,6,8"),
    ({7, 8, 9, 100}, "7-9,100"),
]


@pytest.mark.parametrize(("indexes", "text"), CASES)
def test_indexes_are_written_in_runs(indexes: set[int], text: str) -> None:
    assert format_indexes(indexes) == text
    assert parse_indexes(text, 1000) == indexes


@pytest.mark.parametrize(
    ("text", "limit", "indexes"),
    [
        ("0-9", 3, {0, 1, 2}),
        ("5", 5, set()),
        ("3-1", 10, set()),
        ("0-1000000000000", 2, {0, 1}),
        ("x,1,-,2-y, 4", 10, {1, 4}),
        ("-1", 10, set()),
        ("0-" + "9" * 5000, 2, set()),
    ],
)
def test_what_is_out_of_range_or_unreadable_is_left_out(text: str, limit: int, indexes: set[int]) -> None:
    assert parse_indexes(text, limit) == indexes


@given(st.sets(st.integers(0, 60)))
def test_what_is_written_is_read_again(indexes: set[int]) -> None:
    assert parse_indexes(format_indexes(indexes), 61) == indexes
