"""What components say → what may stand in a status."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pods.failure import MAX_MESSAGE, sanitize


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("0/3 nodes are available.", "0/3 nodes are available."),
        ("rpc error: code = Unknown desc = no route", "no route"),
        ("[rpc error: code = A desc = one, rpc error: code = B desc = two]", "[one, two]"),
        ("mount failed\nOutput:\t none\n", "mount failed Output: none"),
        (f'sandbox "{"0f" * 32}": no address', 'sandbox "…": no address'),
        ("image@sha256:" + "a1" * 32, "image@sha256:" + "a1" * 32),
        ('Get "https://s3.example.com/blob?X-Amz-Signature=secret": EOF', 'Get "https://s3.example.com/blob": EOF'),
        ("Get https://s3.example.com/?token=secret failed", "Get https://s3.example.com/ failed"),
        ("Head https://robot:secret@registry.example.com/v2/: 401", "Head https://registry.example.com/v2/: 401"),
        ("is this https://example.com?", "is this https://example.com"),
        ("", ""),
    ],
)
def test_only_what_helps_is_kept(said: str, shown: str) -> None:
    assert sanitize(said) == shown


def test_a_long_story_is_cut() -> None:
    assert sanitize("x" * MAX_MESSAGE) == "x" * MAX_MESSAGE
    assert sanitize("x" * (MAX_MESSAGE + 1)) == "x" * (MAX_MESSAGE - 1) + "…"


@given(st.text())
def test_it_is_one_short_line_whatever_was_said(said: str) -> None:
    shown = sanitize(said)
    assert len(shown) <= MAX_MESSAGE
    assert shown == sanitize(shown)
    assert len(shown.splitlines()) <= 1
