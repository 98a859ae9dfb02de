"""No test may print a credential or a part of an archive: what a test wrote and what servers logged is looked through.

Tests that have a password use `s3cret`, archives of container checkpoints hold `ARCHIVE_MARK` as memory.
"""

import base64
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest

PASSWORD = "s3cret"
ARCHIVE_MARK = "memory-of-a-process"
MARKS = (PASSWORD, base64.b64encode(f"ada:{PASSWORD}".encode()).decode(), ARCHIVE_MARK)


def leaks(texts: Iterable[str]) -> list[str]:
    """The lines that show what must not be shown."""
    return [line[:300] for text in texts for line in text.splitlines() if any(mark in line for mark in MARKS)]


def file_leaks(paths: Iterable[Path]) -> list[str]:
    return leaks(path.read_text(errors="replace") for path in paths if path.is_file())


def command_line_leaks() -> list[str]:
    """Of every process of holdfast that runs here now."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has ended
            continue
    return leaks(line for line in found if "holdfast" in line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that passed and printed a credential has failed."""
    report = yield
    own = (text for name, text in report.sections if name.endswith(f" {report.when}"))
    if report.passed and (found := leaks(own)):
        report.outcome = "failed"
        report.longrepr = "\n".join(["printed what must not be shown:", *found])
    return report
