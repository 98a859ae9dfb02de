"""Being asked to save: by a file or by SIGTERM, until a checkpoint has answered it."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.train.notice import NO_REASON, announcement_file
from holdfast.train.run import Run
from tests.train.runs import models, save, worker


@pytest.fixture
def sigterm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def ask(folder: Path, reason: str = "drain\n") -> None:
    """As the sidecar does: a new file takes the place of an old one."""
    partial = folder / "notice.partial"
    partial.write_text(reason)
    partial.rename(folder / "notice")


def test_without_a_file_nobody_asks(tmp_path: Path) -> None:
    assert worker(tmp_path).notice() is None
    assert worker(tmp_path, HOLDFAST_NOTICE_FILE="").notice() is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("preempted at 10:00\nmore\n", "preempted at 10:00"),
        ("", NO_REASON),
        ("\n", NO_REASON),
        ("x" * 9999, "x" * 4096),
    ],
)
def test_the_file_says_why(tmp_path: Path, text: str, reason: str) -> None:
    ask(tmp_path, text)
    assert worker(tmp_path).notice() == reason


def test_a_file_without_text_to_read_still_asks(tmp_path: Path) -> None:
    (tmp_path / "notice").mkdir()
    assert worker(tmp_path).notice() == NO_REASON


def test_a_checkpoint_answers_the_notice_and_a_new_notice_asks_again(tmp_path: Path) -> None:
    run = worker(tmp_path)
    ask(tmp_path)
    save(run, "first", epoch=1)
    assert run.notice() is None
    ask(tmp_path, "preempted\n")
    assert run.notice() == "preempted"


def test_a_notice_that_comes_during_a_save_is_not_answered_by_it(tmp_path: Path) -> None:
    run = worker(tmp_path)
    with run.checkpoint(1) as folder:
        (folder / "model").touch()
        ask(tmp_path)
    assert run.notice() == "drain"


def test_a_checkpoint_that_failed_answers_nothing(tmp_path: Path) -> None:
    run = worker(tmp_path)
    ask(tmp_path)
    with pytest.raises(ZeroDivisionError), run.checkpoint(1):
        _ = 1 / 0
    assert run.notice() == "drain"


LOOKING: list[Callable[[Run], object]] = [
    lambda run: run.notice(),
    lambda run: run.due(1),
    lambda run: run.on_notice(lambda _: None),
]
NOT_LOOKING: list[Callable[[Run], object]] = [
    lambda _: None,
    lambda run: list(run.epochs(2)),
    lambda run: run.report(epoch=1, loss=1.0),
    lambda run: save(run, "model", epoch=1),
]


@pytest.mark.parametrize("look", LOOKING)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_script_that_looks_for_notices_says_so(tmp_path: Path, rank: int, look: Callable[[Run], object]) -> None:
    run = worker(tmp_path, rank=rank, world=2)
    assert not announcement_file(tmp_path / "notice").exists()
    look(run)
    assert announcement_file(tmp_path / "notice").read_bytes() == b""


@pytest.mark.parametrize("use", NOT_LOOKING)
def test_a_script_that_never_looks_does_not(tmp_path: Path, use: Callable[[Run], object]) -> None:
    use(worker(tmp_path))
    assert not announcement_file(tmp_path / "notice").exists()


@pytest.mark.parametrize("look", LOOKING)
def test_where_nothing_can_be_said_or_nobody_asks_nothing_breaks(tmp_path: Path, look: Callable[[Run], object]) -> None:
    for place in ("", str(tmp_path / "nowhere" / "notice")):
        look(worker(tmp_path, HOLDFAST_NOTICE_FILE=place))
    assert not (tmp_path / "nowhere").exists()


def test_on_notice_is_called_once_after_the_step_under_way(tmp_path: Path) -> None:
    run = worker(tmp_path)
    called: list[tuple[str, int, int | None]] = []

    def on_notice(reason: str) -> None:
        called.append((reason, run.epoch, run.step))
        save(run, reason)

    run.on_notice(on_notice)
    for epoch in run.epochs(2):
        for batch in run.batches(range(4)):
            if (epoch, batch) == (1, 1):
                ask(tmp_path)
    assert called == [("drain", 1, 2)]
    assert models(tmp_path) == {"checkpoint-epoch-1": "drain"}


def test_on_notice_in_the_last_step_is_called_at_the_end_of_the_epoch(tmp_path: Path) -> None:
    run = worker(tmp_path)
    called: list[tuple[int, int | None]] = []
    run.on_notice(lambda _: called.append((run.epoch, run.step)))
    for _ in run.epochs(1):
        for batch in run.batches(range(4)):
            if batch == 3:
                ask(tmp_path)
        assert called == []
    assert called == [(1, None)]


def test_on_notice_may_loop_and_report_without_being_called_again(tmp_path: Path) -> None:
    run = worker(tmp_path)
    called: list[str] = []

    def on_notice(reason: str) -> None:
        called.append(reason)
        list(run.batches(range(3)))
        run.report(loss=1.0)

    run.on_notice(on_notice)
    ask(tmp_path)
    list(run.epochs(3))
    assert called == ["drain"]


def test_sigterm_is_left_alone_unless_asked_for(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    run = worker(tmp_path)
    list(run.epochs(1))
    save(run, "done")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.usefixtures("sigterm")
def test_sigterm_asks_and_the_process_ends_when_a_checkpoint_has_answered(tmp_path: Path) -> None:
    run = worker(tmp_path)
    run.stop_on_sigterm()
    seen = []

    def train() -> None:
        for _ in run.epochs(9):
            for batch in run.batches(range(9)):
                if batch == 2:
                    os.kill(os.getpid(), signal.SIGTERM)
                if batch == 4:  # two steps later, when it suits the script
                    assert run.notice() == "SIGTERM"
                    save(run, "last")
                seen.append(batch)

    with pytest.raises(SystemExit) as ended:
        train()
    assert ended.value.code == 143
    assert seen == [0, 1, 2, 3, 4]
    assert models(tmp_path) == {"checkpoint-epoch-1": "last"}


def train_and_be_signalled(run: Run, epochs: int) -> None:
    run.stop_on_sigterm()
    for _ in run.epochs(epochs):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("sigterm")
def test_a_script_that_never_saves_ends_after_the_epoch(tmp_path: Path) -> None:
    run = worker(tmp_path)
    with pytest.raises(SystemExit):
        train_and_be_signalled(run, epochs=9)
    assert run.epoch == 1


@pytest.mark.usefixtures("sigterm")
def test_a_training_that_is_done_ends_well_in_spite_of_sigterm(tmp_path: Path) -> None:
    train_and_be_signalled(worker(tmp_path), epochs=1)


@pytest.mark.usefixtures("sigterm")
def test_the_sigterm_after_an_answered_notice_asks_for_no_second_checkpoint(tmp_path: Path) -> None:
    run = worker(tmp_path)
    run.stop_on_sigterm()
    ask(tmp_path)
    save(run, "answer", epoch=1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert run.notice() is None
    steps = run.batches(range(9))
    assert next(steps) == 0
    with pytest.raises(SystemExit):
        next(steps)
