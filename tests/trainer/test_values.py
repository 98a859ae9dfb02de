"""Values out of an environment."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.trainer.settings import InvalidTrainerSetting, choice, flag, integer, number, path


@settings(deadline=None)
@given(st.integers(-1000, 1000), st.integers(-1000, 1000), st.integers(0, 1000))
def test_a_whole_number_is_read_when_it_is_within_its_bounds(value: int, least: int, width: int) -> None:
    environ = {"N": str(value)}
    if least <= value <= least + width:
        assert integer(environ, "N", 0, least=least, most=least + width) == value
    else:
        with pytest.raises(
            InvalidTrainerSetting, match=f"N is '{value}': write a whole number from {least} to {least + width}"
        ):
            integer(environ, "N", 0, least=least, most=least + width)


@pytest.mark.parametrize("text", [" 1", "1 ", "1.0", "1e3", "0x10", "1,000", "--1", "²", "one", "1\n"])
def test_a_whole_number_has_one_spelling(text: str) -> None:
    with pytest.raises(InvalidTrainerSetting, match="N is "):
        integer({"N": text}, "N", 0)


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False, min_value=0))
def test_any_finite_number_from_0_is_read_back_as_it_was_written(value: float) -> None:
    assert number({"X": repr(value)}, "X", 1.0) == value


@pytest.mark.parametrize("text", ["nan", "-nan", "inf", "-inf", "1e999", "-0.5", "half", "1/2", "0x1p3"])
def test_what_is_no_finite_number_from_0_is_refused(text: str) -> None:
    with pytest.raises(InvalidTrainerSetting, match=r"X is .*: write a number of at least 0"):
        number({"X": text}, "X", 1.0)


def test_the_bounds_of_a_number_are_part_of_the_sentence() -> None:
    with pytest.raises(InvalidTrainerSetting, match=r"X is '0': write a number above 0$"):
        number({"X": "0"}, "X", 1.0, above=0)
    with pytest.raises(InvalidTrainerSetting, match=r"X is '1': write a number of at least 0 and below 1$"):
        number({"X": "1"}, "X", 0.5, below=1)
    assert number({"X": "0"}, "X", 1.0) == 0
    assert number({}, "X", 0.5, above=0, below=math.inf) == 0.5


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("false", False), ("", False)])
def test_a_flag_is_true_or_false(text: str, expected: bool) -> None:
    assert flag({"F": text}, "F") is expected
    assert flag({}, "F") is False


@pytest.mark.parametrize("text", ["True", "1", "yes", "on"])
def test_another_word_for_a_flag_is_refused(text: str) -> None:
    with pytest.raises(InvalidTrainerSetting, match="knows true, false"):
        flag({"F": text}, "F")


def test_a_choice_is_one_of_those_that_are_known() -> None:
    assert choice({"C": "a"}, "C", "b", ("a", "b")) == "a"
    assert choice({}, "C", "b", ("a", "b")) == "b"
    with pytest.raises(InvalidTrainerSetting, match="C is 'c': the reference trainer knows a, b; or write your own"):
        choice({"C": "c"}, "C", "b", ("a", "b"), otherwise="; or write your own")


def test_a_path_is_none_when_it_is_not_set() -> None:
    assert path({"P": "/x"}, "P") == Path("/x")
    assert path({"P": ""}, "P") is None
    assert path({}, "P") is None
