"""One process of a training: its place among the others, its position in the training, and what it does there."""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from holdfast.train import checkpoint as resuming
from holdfast.train import checkpoint as saving
from holdfast.train import environment
from holdfast.train.checkpoint import SaveId
from holdfast.train.environment import Environment, TrainError
from holdfast.train.notice import Notice, NoticeState
from holdfast.train.progress import METRIC, Gpus, Progress

T = TypeVar("T")
# Within an epoch a line is written no more often: a script may report thousands of steps a second.
LINE_EVERY_S = 1.0


def start(*, shards: bool = False, agree: Callable[[bool], bool] | None = None) -> Run:
    """Call it once in each process.

    Rank 0 saves for all; with `shards` every rank saves its part, and a checkpoint counts when all parts are there.
    `agree` is given this rank's wish to save and returns, on every rank, whether any of them has it: a clock or a
    notice asks one rank alone, and with it they still save at the same step.
    """
    return Run(environment.read(os.environ), shards=shards, agree=agree)


class Run:
    """What `start` returns. Epochs and steps count from 1; a number is that of what is under way, or was last."""

    def __init__(
        self,
        env: Environment,
        *,
        shards: bool = False,
        agree: Callable[[bool], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
        gpus: Gpus | None = None,
    ) -> None:
        self.rank, self.world, self.attempt = env.rank, env.world, env.attempt
        self.resumed: Path | None = resuming.resume_folder(env)
        self.epoch, self._steps_done = resuming.resume_position(self.resumed)
        self.step: int | None = None
        self._total = env.epochs
        self._steps: int | None = None

        self._told, self._shards, self._agree, self._clock = env, shards, agree, clock
        self._reports = env.progress_file is not None and env.rank == 0
        self._saves = env.checkpoint_dir is not None and (shards or env.rank == 0)
        self._line_at = self._saved_at = clock()
        self._progress = Progress(env.progress_file)
        self._gpus = gpus or Gpus()
        self._numbers: dict[str, float] = {}
        self._is_reported = False
        self._notice = Notice(env.notice_file)
        self._save: Callable[[str], object] | None = None

    def epochs(self, total: int | None = None, *, default: int | None = None) -> Iterator[int]:
        """The epochs still to be done of `total`; without it, of as many as the job says (EPOCHS), or of `default`."""
        chosen = next((number for number in (total, self._total, default) if number is not None), None)
        if chosen is None:
            raise TrainError("how many epochs? write run.epochs(10), or hyperparameters.epochs in the job (EPOCHS)")
        self._total = operator.index(chosen)
        for epoch in range(self.epoch + 1, self._total + 1):
            self.epoch, self.step = epoch, None
            self._numbers, self._is_reported = {}, False
            yield epoch
            self._end_epoch()

    def batches(self, batches: Iterable[T]) -> Iterator[T]:
        """One epoch's batches, each a step, without those that were done before the checkpoint that was resumed from.

        They must come in the same order each time that this epoch is trained.
        """
        done, self._steps_done = self._steps_done, 0
        self._steps = _length(batches)
        try:
            for step, batch in enumerate(itertools.islice(batches, done, None), start=done + 1):
                self.step = step
                yield batch
                self._end_step()
        finally:
            self.step = self._steps = None

    def report(self, **numbers: object) -> None:
        """Numbers of this step or epoch. A framework with a loop of its own adds epoch=, and step= within an epoch."""
        is_within_epoch = self.step is not None or "step" in numbers
        if not self._reports or (is_within_epoch and not self._is_line_due()):
            return  # a tensor is not even looked at: that would wait for its device
        kept = {} if "epoch" in numbers else {name: self._numbers[name] for name in self._numbers.keys() - numbers}
        self._numbers = {**kept, **self._progress.numbers(numbers)}
        self._write_line()

    def due(self, epoch: int | None = None) -> bool:
        """Whether this process is to save now: every so many epochs, so many seconds, at the end, or on a notice.

        An `epoch` that is given is done; without it, the position is that of the loops.
        """
        if self._told.checkpoint_dir is None:
            return False
        self._notice.announce()
        seen, wish = self._notice.look(), self._should_save(*self._position(epoch))
        if self._agree is not None:
            wish = bool(self._agree(wish))
        if wish and not self._saves:
            self._note_saved(seen)  # by rank 0
        return wish and self._saves

    @contextlib.contextmanager
    def checkpoint(self, epoch: int | None = None, *, metrics: Mapping[str, object] | None = None) -> Iterator[Path]:
        """A folder to save into: a checkpoint once the block has ended well. What it raises, the training must know.

        By its loss or accuracy the best checkpoint is chosen. At the end of an epoch these are the numbers that were
        reported, and `metrics`; within an epoch, where what is reported is of a step, `metrics` alone.

        Where nothing is to be kept (outside holdfast, and on other ranks than 0) the folder is thrown away.
        """
        seen, at = self._notice.look(), self._position(epoch)
        with self._folder(*at, metrics or {}) as folder:
            yield folder
        self._note_saved(seen)

    def notice(self) -> str | None:
        """Why the training is asked to save now; None when it is not, or has saved since."""
        self._notice.announce()
        return self._notice.pending()

    def on_notice(self, save: Callable[[str], object]) -> None:
        """Call `save` with the reason once for each notice, after the step or the epoch under way."""
        self._notice.announce()
        self._save = save

    def stop_on_sigterm(self) -> None:
        """Take SIGTERM for a notice, and end with exit code 143 when it is answered or the epoch over."""
        self._notice.listen_to_sigterm()

    def _position(self, epoch: int | None = None) -> tuple[int, int | None]:
        if epoch is not None:
            if operator.index(epoch) < 0:
                raise TrainError(f"there is no epoch {epoch}: they count from 1, and 0 is the untrained model")
            return operator.index(epoch), None
        if self.epoch == 0:
            raise TrainError("which epoch? loop over run.epochs(), or name the one that is done: checkpoint(epoch)")
        return self.epoch, self.step

    def _should_save(self, epoch: int, step: int | None) -> bool:
        if step is not None and self._is_last_step():
            return False  # the end of the epoch is near; a checkpoint from here would leave nothing of it to resume
        is_planned = step is None and (epoch % self._told.frequency == 0 or epoch == self._total)
        interval_s = self._told.interval_s
        is_time = interval_s is not None and self._clock() - self._saved_at >= interval_s
        return is_planned or is_time or self.notice() is not None

    def _folder(
        self, epoch: int, step: int | None, given: Mapping[str, object]
    ) -> contextlib.AbstractContextManager[Path]:
        if self._told.checkpoint_dir is None or not self._saves:
            return saving.discarded_folder()
        reported = self._metrics(epoch) if step is None else {}
        metrics = {**reported, **self._progress.numbers(given)}
        save = SaveId(self.attempt, self._told.restart, epoch, step)
        writer = saving.ShardWriter(self.rank, self.world if self._shards else None, metrics)
        return saving.saved(self._told.checkpoint_dir, save, writer)

    def _metrics(self, epoch: int) -> dict[str, float]:
        """The numbers that were reported of what is saved."""
        if self._numbers.get("epoch", self.epoch) != epoch:
            return {}
        return {name: number for name, number in self._numbers.items() if name not in ("epoch", "step")}

    def _note_saved(self, seen: NoticeState) -> None:
        self._saved_at = self._clock()
        self._notice.answer(seen)

    def _end_step(self) -> None:
        if not self._is_last_step():
            # A script that reports nothing within an epoch still shows how far a long one is.
            if self._reports and self._is_line_due():
                self._write_line()
            self._heed_notice()
            self._stop_if_asked()

    def _end_epoch(self) -> None:
        self._steps_done = 0
        if self._reports and not self._is_reported:
            self._write_line()
        self._heed_notice()
        if self.epoch != self._total:
            self._stop_if_asked(at_once=True)

    def _heed_notice(self) -> None:
        if self._save is not None:
            seen, reason = self._notice.look(), self.notice()
            if reason is not None:
                self._notice.answer(seen)
                self._save(reason)

    def _stop_if_asked(self, *, at_once: bool = False) -> None:
        if self._notice.is_signalled and (at_once or self.notice() is None):
            raise SystemExit(128 + signal.SIGTERM)

    def _is_last_step(self) -> bool:
        return self.step is not None and self.step == self._steps

    def _is_line_due(self) -> bool:
        return self._is_last_step() or self._clock() - self._line_at >= LINE_EVERY_S

    def _write_line(self) -> None:
        where = {"epoch": self.epoch or None, "epochs": self._total, "step": self.step, "steps": self._steps}
        known = {name: number for name, number in where.items() if number is not None}
        self._progress.write({**known, **self._busy(), **self._numbers})
        self._line_at, self._is_reported = self._clock(), self.step is None

    def _busy(self) -> dict[str, float]:
        percent = self._gpus.utilization_percent()
        return {} if percent is None else {METRIC: percent}


def _length(batches: Iterable[object]) -> int | None:
    """None where it is not known: a loader of a stream has a length that raises."""
    try:
        return len(batches)  # type: ignore[arg-type]  # most have one
    except TypeError:
        return None
