"""What an attempt finds in its folder, whatever the attempts before it have left."""

import itertools
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.sidecar.restore import NOTHING, POLLS_PER_LINE, NoAttempt, restore
from tests.sidecar.volumes import MODEL, checkpoint, tree


def no_waiting(_: float) -> None:
    pytest.fail("nothing is to be waited for")


def restored(root: Path, attempt: int, index: int = 0) -> str:
    return restore(root / f"attempt-{attempt}", root / f"attempt-{attempt}.resume", index, sleep=no_waiting)


def test_a_first_attempt_has_an_empty_folder_and_nothing_to_resume_from(tmp_path: Path) -> None:
    root = tmp_path / "ml" / "bert" / "uid"
    assert restored(root, 0) == "nothing to resume from"
    assert list((root / "attempt-0").iterdir()) == []
    assert not os.path.lexists(root / "attempt-0.resume")


def test_the_newest_checkpoint_is_copied_and_linked(tmp_path: Path) -> None:
    checkpoint(tmp_path, 0, "checkpoint-epoch-3")
    newest = checkpoint(tmp_path, 1, "checkpoint-epoch-7", {"model.bin": "of epoch 7"})
    assert restored(tmp_path, 2) == "resuming from checkpoint-epoch-7 of attempt 1"
    assert tree(tmp_path / "attempt-2") == {"checkpoint-epoch-7/model.bin": "of epoch 7"}
    assert (tmp_path / "attempt-2.resume").readlink() == Path("attempt-2/checkpoint-epoch-7")
    assert tree(newest) == {"model.bin": "of epoch 7"}, "the original stays"


def test_the_link_still_leads_there_when_the_volume_is_mounted_elsewhere(tmp_path: Path) -> None:
    checkpoint(tmp_path / "here", 0, "checkpoint-epoch-3")
    restored(tmp_path / "here", 1)
    (tmp_path / "here").rename(tmp_path / "there")
    assert tree(tmp_path / "there" / "attempt-1.resume") == MODEL


def test_its_own_checkpoint_is_taken_where_it_is(tmp_path: Path) -> None:
    checkpoint(tmp_path, 0, "checkpoint-epoch-3")
    restored(tmp_path, 1)
    own = checkpoint(tmp_path, 1, "checkpoint-epoch-4")
    inode = own.stat().st_ino
    assert restored(tmp_path, 1) == "resuming from checkpoint-epoch-4 of attempt 1"
    assert own.stat().st_ino == inode
    assert (tmp_path / "attempt-1.resume").readlink() == Path("attempt-1/checkpoint-epoch-4")


def test_a_second_time_changes_nothing(tmp_path: Path) -> None:
    checkpoint(tmp_path, 0, "checkpoint-epoch-3")
    restored(tmp_path, 1)
    before, inode = tree(tmp_path), (tmp_path / "attempt-1" / "checkpoint-epoch-3").stat().st_ino
    said = restored(tmp_path, 1)
    assert said == "resuming from checkpoint-epoch-3 of attempt 1"
    after = tree(tmp_path)
    assert {**after, "attempt-1.decision": ""} == {**before, "attempt-1.decision": ""}
    assert (tmp_path / "attempt-1" / "checkpoint-epoch-3").stat().st_ino == inode


def test_a_link_of_before_goes_when_there_is_nothing_to_resume_from_any_more(tmp_path: Path) -> None:
    own = checkpoint(tmp_path, 0, "checkpoint-epoch-3")
    restored(tmp_path, 0)
    shutil.rmtree(own)
    assert restored(tmp_path, 0) == NOTHING
    assert not os.path.lexists(tmp_path / "attempt-0.resume")


def test_leftovers_of_every_attempt_are_removed(tmp_path: Path) -> None:
    for attempt in (0, 1, 2):
        (tmp_path / f"attempt-{attempt}" / ".holdfast-restoring-checkpoint-epoch-3").mkdir(parents=True)
    restored(tmp_path, 1)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/.*")) == [
        "attempt-2/.holdfast-restoring-checkpoint-epoch-3"
    ], "a later attempt's is not ours"


def test_a_checkpoint_with_a_link_out_of_the_volume_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path, 0, "checkpoint-epoch-3")
    link = checkpoint(tmp_path, 0, "checkpoint-epoch-4") / "secret"
    link.symlink_to("/etc/passwd")
    assert restored(tmp_path, 1) == "resuming from checkpoint-epoch-3 of attempt 0"
    assert capsys.readouterr().err == (
        f"checkpoint-epoch-4 of attempt 0 is left out: the link {link} leads out of {tmp_path}, or nowhere\n"
    )


@settings(deadline=None)  # disks take their time
@given(
    made=st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 12)), st.booleans(), max_size=8),
    attempt=st.integers(0, 4),
)
def test_there_is_something_to_resume_from_exactly_when_there_was(
    made: dict[tuple[int, int], bool], attempt: int
) -> None:
    """`made` says of each attempt's epochs whether their folder is whole or empty."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for (number, epoch), is_whole in made.items():
            files = {"model.bin": f"{number}/{epoch}"} if is_whole else {}
            checkpoint(root, number, f"checkpoint-epoch-{epoch}", files)
        whole = [(epoch, number) for (number, epoch), is_whole in made.items() if is_whole and number <= attempt]
        said, resume_from = restored(root, attempt), root / f"attempt-{attempt}.resume"
        assert os.path.lexists(resume_from) == bool(whole)
        if whole:
            epoch, number = max(whole)
            assert said == f"resuming from checkpoint-epoch-{epoch} of attempt {number}"
            assert tree(resume_from) == {"model.bin": f"{number}/{epoch}"}
            assert resume_from.resolve().parent.name == f"attempt-{attempt}"
        else:
            assert said == NOTHING


class Killed(BaseException):
    """The process is no more."""


STEPS = ("mkdir", "rename", "replace", "symlink", "unlink", "chmod", "fsync", "open")


def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let so many changes to the disk happen, and not one more."""
    count = itertools.count(1)

    def dying(original: object, *args: object, **options: object) -> object:
        if next(count) > step:
            raise Killed
        assert callable(original)
        return original(*args, **options)

    for name in STEPS:
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, _original=original, **options: dying(_original, *args, **options))


def test_killed_at_any_moment_and_repeated_it_ends_the_same(tmp_path: Path) -> None:
    for step in itertools.count():
        root = tmp_path / str(step)
        checkpoint(root, 0, "checkpoint-epoch-3")
        resume_from = root / "attempt-1.resume"
        with pytest.MonkeyPatch.context() as patch:
            killed_at(step, patch)
            try:
                said = restored(root, 1)
            except Killed:
                said = ""
        if resume_from.exists():
            assert tree(resume_from) == MODEL, "what can be resumed from is whole, at every moment"
        if said:
            break
        assert restored(root, 1).startswith("resuming from checkpoint-epoch-3")
        assert tree(resume_from) == MODEL
        assert sorted(path.name for path in (root / "attempt-1").iterdir()) == ["checkpoint-epoch-3"]
        assert not list(root.glob(".*"))
    assert step > 10, "the steps were counted"


def test_another_worker_waits_for_worker_0_and_says_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path, 0, "checkpoint-epoch-3")
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == POLLS_PER_LINE * 2 + 5:
            restored(tmp_path, 1, index=0)

    said = restore(tmp_path / "attempt-1", tmp_path / "attempt-1.resume", 1, sleep=nap)
    assert said == "resuming from checkpoint-epoch-3 of attempt 0"
    assert len(naps) == POLLS_PER_LINE * 2 + 5
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"waiting for worker 0 to put the newest checkpoint into {tmp_path}; ")


def test_another_worker_follows_worker_0_even_when_an_old_worker_has_saved_since(tmp_path: Path) -> None:
    checkpoint(tmp_path, 0, "checkpoint-epoch-3")
    restored(tmp_path, 1, index=0)
    checkpoint(tmp_path, 0, "checkpoint-epoch-4")
    assert restored(tmp_path, 1, index=1) == "resuming from checkpoint-epoch-3 of attempt 0"


def test_another_worker_is_told_that_there_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "attempt-0").mkdir()
    restored(tmp_path, 1, index=0)
    assert restored(tmp_path, 1, index=1) == NOTHING


@pytest.mark.parametrize("attempt", [0, 3])
def test_a_worker_with_a_volume_of_its_own_waits_for_nobody(tmp_path: Path, attempt: int) -> None:
    assert restored(tmp_path, attempt, index=1) == NOTHING
    assert (tmp_path / f"attempt-{attempt}").is_dir()


def test_another_worker_never_touches_the_link(tmp_path: Path) -> None:
    (tmp_path / "attempt-0.resume").symlink_to("attempt-0/checkpoint-epoch-1")
    assert restored(tmp_path, 0, index=1) == NOTHING
    assert os.path.lexists(tmp_path / "attempt-0.resume")


@pytest.mark.parametrize("name", ["checkpoints", "attempt-", "attempt-x", "attempt-1.resume", "attempt--1"])
def test_a_folder_that_is_no_attempts_is_refused_before_anything_is_made(tmp_path: Path, name: str) -> None:
    with pytest.raises(NoAttempt, match=f"CHECKPOINT_DIR is {tmp_path / name}: .*attempt-N"):
        restore(tmp_path / name, tmp_path / "resume", 0, sleep=no_waiting)
    assert list(tmp_path.iterdir()) == []


def test_something_else_in_the_place_of_the_link_is_not_destroyed(tmp_path: Path) -> None:
    checkpoint(tmp_path, 0, "checkpoint-epoch-3")
    (tmp_path / "attempt-1.resume").mkdir()
    with pytest.raises(OSError, match=r"attempt-1\.resume"):
        restored(tmp_path, 1)
    assert (tmp_path / "attempt-1.resume").is_dir()
