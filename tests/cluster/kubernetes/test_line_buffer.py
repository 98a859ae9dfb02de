from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster.kubernetes.transport import LineBuffer, LineTooLong


def cut_up(content: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(content) + 1) for place in places), len(content)]
    return [content[start:end] for start, end in pairwise(edges)]


def fed(lines: LineBuffer, chunks: list[bytes]) -> list[bytes]:
    return [line for chunk in chunks for line in lines.feed(chunk)]


@given(
    whole=st.lists(st.binary(min_size=1).map(lambda line: b"{" + line.replace(b"\n", b"")), max_size=20),
    places=st.lists(st.integers(min_value=0), max_size=30),
)
def test_lines_come_out_whole_wherever_the_network_cuts_them(whole: list[bytes], places: list[int]) -> None:
    lines = LineBuffer()
    content = b"".join(line + b"\n" for line in whole)
    assert fed(lines, cut_up(content, places)) == whole
    assert not lines.has_partial_line


@given(places=st.lists(st.integers(min_value=0), max_size=5))
def test_a_line_without_its_end_is_torn(places: list[int]) -> None:
    lines = LineBuffer()
    assert fed(lines, cut_up(b"whole\nhalf", places)) == [b"whole"]
    assert lines.has_partial_line


def test_empty_lines_are_passed_over() -> None:
    assert fed(LineBuffer(), [b"\n\r\none\n\n", b"\n"]) == [b"one"]


def test_a_line_beyond_the_limit_is_refused_before_it_is_held() -> None:
    lines = LineBuffer(longest=10)
    assert fed(lines, [b"0123456789\n", b"01234", b"56789\n"]) == [b"0123456789", b"0123456789"]
    with pytest.raises(LineTooLong):
        fed(lines, [b"012345", b"6789a"])
