"""$(NAME), by Kubernetes' rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.local.kubelet.environment import expand

VARIABLES = {"A": "1", "B": "$(A)", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x$(A)y$(A)", "x1y1"),
        ("$(B)", "$(A)"),
        ("[$(EMPTY)]", "[]"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$A ${A}", "$A ${A}"),
        ("cost: 5$", "cost: 5$"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("", ""),
    ],
)
def test_references_are_replaced(text: str, expected: str) -> None:
    assert expand(text, VARIABLES) == expected


@given(st.text())
def test_escaping_every_dollar_keeps_any_text(text: str) -> None:
    assert expand(text.replace("$", "$$"), VARIABLES) == text


@given(st.text(alphabet=st.characters(exclude_characters="$")))
def test_text_without_dollars_stays_as_it_is(text: str) -> None:
    assert expand(text, VARIABLES) == text
