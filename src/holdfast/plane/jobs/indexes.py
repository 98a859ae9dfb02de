"""Sets of completion indexes as a Job's status has them: 0-2,4."""

from collections.abc import Iterable


def parse_indexes(text: str, limit: int) -> frozenset[int]:
    """The indexes below `limit`; what can't be read is left out, as a status that somebody broke is mended."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if all(end.isdecimal() and len(end) < 19 for end in (first, last or first)):
            found.update(range(int(first), min(int(last or first) + 1, limit)))
    return frozenset(found)


def format_indexes(indexes: Iterable[int]) -> str:
    """In order, with runs of at least three drawn together as the API server does, and of two as a pair."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(_run(first, last) for first, last in runs)


def _run(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first},{last}" if last == first + 1 else f"{first}-{last}"
