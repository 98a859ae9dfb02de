"""Asking a training to save, and what counts as its answer."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoints.completeness import FolderScan
from holdfast.checkpoints.files import FileEntry, FileStamp
from holdfast.checkpoints.manifest import checkpoint_name
from holdfast.sidecar.persister import (
    checkpoint_saved_since,
    contents,
    save_timeout_s,
    trainer_saves_on_notice,
    write_notice,
)
from holdfast.train.notice import Notice


def looked(epoch: int, *, complete: bool = True, version: int = 0) -> FolderScan:
    return FolderScan(
        checkpoint_name(epoch, 0), complete, "", (FileEntry("model.bin", FileStamp(1, 1, version, version)),)
    )


def test_the_notice_is_what_the_sdk_reads(tmp_path: Path) -> None:
    file = tmp_path / "run" / "notice"
    sdk = Notice(file)
    assert sdk.pending() is None
    write_notice(file, "the pod is about\nto end")
    assert sdk.pending() == "the pod is about to end"
    sdk.answer(sdk.observe())
    assert sdk.pending() is None
    write_notice(file, "again")
    assert sdk.pending() == "again"
    assert [path.name for path in file.parent.iterdir()] == ["notice"]


@pytest.mark.parametrize(
    ("before", "after", "epoch"),
    [
        ([], [], None),
        ([], [looked(1)], 1),
        ([], [looked(1, complete=False)], None),
        ([looked(1)], [looked(1)], None),
        ([looked(1, complete=False)], [looked(1)], None),
        ([looked(1, complete=False)], [looked(1, version=1)], 1),
        ([looked(1)], [looked(1, version=1)], 1),
        ([looked(1)], [looked(2, complete=False), looked(1)], None),
        ([looked(1)], [looked(2), looked(1)], 2),
    ],
    ids=[
        "nothing is saved",
        "the first checkpoint",
        "it is still written",
        "an old one is there",
        "an old one turns out to be complete",
        "one that was under way is complete now",
        "saved anew under its name",
        "the next is still written",
        "the next",
    ],
)
def test_only_what_was_written_since_the_notice_answers_it(
    before: list[FolderScan], after: list[FolderScan], epoch: int | None
) -> None:
    name = checkpoint_saved_since(contents(before), after)
    assert (name.epoch if name else None) == epoch


@pytest.mark.parametrize(("grace_s", "waits_s"), [(0, 0), (3, 2), (30, 20), (60, 40), (90, 60), (600, 60)])
def test_a_part_of_the_grace_period_is_reserved(grace_s: float, waits_s: float) -> None:
    assert save_timeout_s(grace_s) == pytest.approx(waits_s)


@given(st.floats(0, 1e6))
def test_at_least_a_third_is_reserved_and_nobody_waits_longer_than_a_minute(grace_s: float) -> None:
    assert 0 <= save_timeout_s(grace_s) <= min(60.0, grace_s * 2 / 3 + 1e-9)


def test_a_training_that_looks_for_notices_says_so(tmp_path: Path) -> None:
    file = tmp_path / "notice"
    assert not trainer_saves_on_notice(file)
    Notice(file).announce()
    assert trainer_saves_on_notice(file)
    assert [path.name for path in tmp_path.iterdir()] == ["notice.heeded"]
