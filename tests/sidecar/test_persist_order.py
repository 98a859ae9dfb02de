"""Which checkpoint is kept next, and when one that failed is tried again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoints.completeness import FolderScan
from holdfast.checkpoints.files import FileEntry, FileStamp
from holdfast.checkpoints.manifest import CheckpointName, checkpoint_name
from holdfast.sidecar.persister import RETRY_CAP_S, Failure, next_to_persist, record_failure

Content = tuple[FileEntry, ...]


def content(version: int = 0) -> Content:
    return (FileEntry("model.bin", FileStamp(1, 1, version, version)),)


def looked(epoch: int, *, complete: bool = True, version: int = 0) -> FolderScan:
    return FolderScan(checkpoint_name(epoch, 0), complete, "", content(version))


def chosen(
    looks: list[FolderScan],
    done: dict[CheckpointName, Content] | None = None,
    failures: dict[CheckpointName, Failure] | None = None,
    *,
    keep: int = 3,
    now_s: float = 0.0,
) -> int | None:
    found = next_to_persist(looks, done or {}, failures or {}, keep=keep, now_s=now_s)
    return found.name.epoch if found else None


def test_the_newest_complete_one_comes_first() -> None:
    assert chosen([looked(1), looked(3, complete=False), looked(2)]) == 2


def test_what_is_kept_is_not_kept_again_unless_it_changed() -> None:
    done = {checkpoint_name(2, 0): content()}
    assert chosen([looked(2), looked(1)], done) == 1
    assert chosen([looked(2, version=1), looked(1)], done) == 2


def test_what_would_be_deleted_at_once_is_not_kept() -> None:
    done = {checkpoint_name(epoch, 0): content() for epoch in (3, 4)}
    assert chosen([looked(epoch) for epoch in (1, 2, 3, 4)], done, keep=2) is None
    assert chosen([looked(epoch) for epoch in (1, 2, 3, 4)], done, keep=3) == 2


def test_the_best_one_is_kept_however_old_it_is() -> None:
    looks, done = [looked(epoch) for epoch in (1, 2, 3)], {checkpoint_name(3, 0): content()}
    assert next_to_persist(looks, done, {}, keep=1, now_s=0.0, best=checkpoint_name(1, 0)) == looked(1)
    assert next_to_persist([looked(1, complete=False)], {}, {}, keep=1, now_s=0.0, best=checkpoint_name(1, 0)) is None


def test_one_that_failed_waits_and_does_not_hold_up_the_others() -> None:
    failures = {checkpoint_name(2, 0): Failure(content(), 1, 10.0, "full")}
    assert chosen([looked(2), looked(1)], failures=failures, now_s=9.0) == 1
    assert chosen([looked(2), looked(1)], failures=failures, now_s=10.0) == 2


def test_one_that_no_retry_mends_is_tried_again_when_it_changed() -> None:
    failures = {checkpoint_name(2, 0): Failure(content(), 1, None, "a link")}
    assert chosen([looked(2)], failures=failures, now_s=1e9) is None
    assert chosen([looked(2, version=1)], failures=failures) == 2


def test_the_pause_doubles_up_to_a_bound_and_begins_anew_with_other_content() -> None:
    failure, pauses = None, []
    for _ in range(8):
        failure = record_failure(failure, looked(1), "full", now_s=0.0, is_transient=True)
        pauses.append(failure.retry_at_s)
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, RETRY_CAP_S, RETRY_CAP_S, RETRY_CAP_S]
    assert record_failure(failure, looked(1, version=1), "full", now_s=0.0, is_transient=True).attempts == 1


def test_what_does_not_pass_is_not_tried_again() -> None:
    assert record_failure(None, looked(1), "a link", now_s=0.0, is_transient=False).retry_at_s is None


@given(st.sets(st.integers(0, 50), max_size=12), st.sets(st.integers(0, 50), max_size=12), st.integers(1, 5))
def test_step_by_step_exactly_the_newest_are_kept(complete: set[int], writing: set[int], keep: int) -> None:
    looks = [looked(epoch, complete=epoch in complete) for epoch in complete | writing]
    done: dict[CheckpointName, Content] = {}
    while (found := next_to_persist(looks, done, {}, keep=keep, now_s=0.0)) is not None:
        done[found.name] = found.content
    assert [name.epoch for name in done] == sorted(complete, reverse=True)[:keep]


@pytest.mark.parametrize("tries", [10, 1000, 100_000])
def test_the_pause_is_bounded_however_often_it_fails(tries: int) -> None:
    before = Failure(content(), tries, 0.0, "full")
    assert record_failure(before, looked(1), "full", now_s=5.0, is_transient=True).retry_at_s == 5.0 + RETRY_CAP_S
