"""The syntax of names and labels."""

import re
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.local.apiserver.admission import generated_name
from holdfast.local.apiserver.objects import (
    dns_1035_problems,
    dns_label_problems,
    dns_subdomain_problems,
    label_key_problems,
    label_value_problems,
)

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

Check = Callable[[str], list[str]]


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (dns_label_problems, ["a", "0", "a-b", "a" * 63], ["", "-a", "a-", "A", "a.b", "a_b", "a" * 64, "a\n"]),
        (dns_1035_problems, ["a", "a-0"], ["0a", "a.b", "", "a" * 64]),
        (dns_subdomain_problems, ["a", "a.b-c.0", "a" * 253], ["a..b", ".a", "a.", "A", "a" * 254, "ä"]),
        (label_key_problems, ["a", "A_b.c-d", "x.y/z", "x.y/Z_1"], ["", "/a", "a/", "a/b/c", "X/y", "-a", "a b"]),
        (label_value_problems, ["", "a", "A_b.c-d", "a" * 63], ["-a", "a-", "a b", "a/b", "a" * 64]),
    ],
)
def test_names_are_distinguished(check: Check, good: list[str], bad: list[str]) -> None:
    assert [name for name in good if check(name)] == []
    assert [name for name in bad if not check(name)] == []


@patient
@given(st.from_regex(r"[a-z]([-a-z0-9]{0,80}[a-z0-9])?-?", fullmatch=True), st.integers())
def test_a_generated_name_is_a_name_with_its_prefix(prefix: str, seed: int) -> None:
    name = generated_name(prefix, Random(seed))
    assert dns_label_problems(name) == []
    assert name.startswith(prefix[:58])
    assert re.fullmatch(r"[a-z0-9]{5}", name[-5:])
