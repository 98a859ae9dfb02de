"""What outlives a sidecar in its pod, and what it leaves at the end."""

import json
from contextlib import suppress
from pathlib import Path

from holdfast.api.reports import ProgressReport, TerminationReport
from holdfast.sidecar.progress import InvalidProgress, Tail
from holdfast.sidecar.restore import PROGRESS_JOURNAL, RESTORED, RestartState, ResumeInfo, parse_journal_line
from holdfast.sidecar.shutdown import MOST_BYTES, write_termination_report


def noted(folder: Path) -> list[ProgressReport]:
    file = RestartState(folder).progress_journal
    assert file is not None
    found = []
    for line in Tail(file).lines():
        with suppress(InvalidProgress):
            found.append(parse_journal_line(line))
    return found


def test_what_an_attempt_began_with_is_remembered(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert RestartState(folder).began() is None
    RestartState(folder).begin(ResumeInfo("/x/attempt-0/checkpoint-epoch-3", 3, 0, "checkpoint-epoch-3"))
    assert RestartState(folder).began() == ResumeInfo("/x/attempt-0/checkpoint-epoch-3", 3, 0, "checkpoint-epoch-3")


def test_epochs_that_are_in_no_other_file_are_remembered(tmp_path: Path) -> None:
    entries = [ProgressReport(epoch=epoch, metrics={"loss": 1 / epoch}, at=5.0) for epoch in (1, 2)]
    for entry in entries:
        assert RestartState(tmp_path).journal_progress(entry)
    assert noted(tmp_path) == entries


def test_what_was_cut_off_or_is_damaged_is_passed_over(tmp_path: Path) -> None:
    RestartState(tmp_path).journal_progress(ProgressReport(epoch=1, at=5.0))
    with (tmp_path / PROGRESS_JOURNAL).open("ab") as file:
        file.write(b'\xff\n{"epoch": -3, "at": 1}\n{"epoch": 2, "at"')
    (tmp_path / RESTORED).write_bytes(b'{"path": ')
    assert [entry.epoch for entry in noted(tmp_path)] == [1]
    assert RestartState(tmp_path).began() is None


def test_without_a_folder_or_with_a_bad_one_nothing_is_remembered_and_nothing_breaks(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for state in (RestartState(None), RestartState(tmp_path / "file" / "x")):
        state.begin(ResumeInfo("/x", 1, 0, "checkpoint-epoch-1"))
        assert not state.journal_progress(ProgressReport(epoch=1, at=5.0))
        assert state.began() is None
    assert RestartState(None).progress_journal is None


def test_the_last_word_says_what_is_kept_what_is_lost_and_how_far_it_was(tmp_path: Path) -> None:
    file = tmp_path / "message"
    write_termination_report(
        file, TerminationReport(attempt=2, checkpoint="/c/3", lost=("/c/4",), progress=ProgressReport(epoch=4, at=5.0))
    )
    assert json.loads(file.read_text()) == {
        "attempt": 2,
        "checkpoint": "/c/3",
        "lost": ["/c/4"],
        "progress": {"epoch": 4, "at": 5.0},
    }


def test_a_last_word_that_is_too_long_for_the_kubelet_leaves_the_numbers_out(tmp_path: Path) -> None:
    metrics = {f"a_metric_with_quite_a_long_name_{number:030}": 0.5 for number in range(64)}
    file = tmp_path / "message"
    write_termination_report(
        file, TerminationReport(attempt=2, checkpoint="/c/3", progress=ProgressReport(epoch=4, metrics=metrics, at=5.0))
    )
    assert len(file.read_bytes()) <= MOST_BYTES
    assert json.loads(file.read_text()) == {"attempt": 2, "checkpoint": "/c/3"}


def test_a_message_that_can_t_be_left_is_no_reason_to_fail(tmp_path: Path) -> None:
    write_termination_report(tmp_path / "nowhere" / "message", TerminationReport(attempt=2))
    assert not (tmp_path / "nowhere").exists()
