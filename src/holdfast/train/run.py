"""One process of a training: its rank, its position in the training, and its checkpoints and reports."""

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

from holdfast.train import checkpoint, environment
from holdfast.train.checkpoint import SaveId
from holdfast.train.environment import Environment, TrainError
from holdfast.train.notice import Notice, NoticeState
from holdfast.train.progress import METRIC, GpuMonitor, ProgressFile

T = TypeVar("T")
# The shortest time between two lines within an epoch: a script may report thousands of steps per second.
LINE_EVERY_S = 1.0


def start(*, shards: bool = False, agree: Callable[[bool], bool] | None = None) -> Run:
    """Call `start` once in each process.

    Rank 0 saves for all ranks. With `shards` every rank saves its shard, and a checkpoint counts when all shards exist.
    `agree` receives whether this rank should save and returns, on every rank, whether any rank should: a timer or a
    notice reaches a single rank, and with `agree` all ranks still save at the same step.
    """
    return Run(environment.read(os.environ), shards=shards, agree=agree)


class Run:
    """The result of `start`. Epochs and steps count from 1; `epoch` and `step` are the current ones, or the last."""

    def __init__(
        self,
        env: Environment,
        *,
        shards: bool = False,
        agree: Callable[[bool], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
        gpus: GpuMonitor | None = None,
    ) -> None:
        self.rank, self.world, self.attempt = env.rank, env.world, env.attempt
        self.resumed: Path | None = checkpoint.resume_folder(env)
        self.epoch, self._steps_done = checkpoint.resume_position(self.resumed)
        self.step: int | None = None
        self._total_epochs = env.epochs
        self._steps: int | None = None

        self._env, self._shards, self._agree, self._clock = env, shards, agree, clock
        self._reports = env.progress_file is not None and env.rank == 0
        self._saves = env.checkpoint_dir is not None and (shards or env.rank == 0)
        self._line_written_at = self._saved_at = clock()
        self._progress = ProgressFile(env.progress_file)
        self._gpus = gpus or GpuMonitor()
        self._metrics: dict[str, float] = {}
        self._is_reported = False
        self._notice = Notice(env.notice_file)
        self._on_notice: Callable[[str], object] | None = None

    def epochs(self, total: int | None = None, *, default: int | None = None) -> Iterator[int]:
        """The remaining epochs of `total`; without `total`, of the number in the job (EPOCHS), or of `default`."""
        chosen = next((number for number in (total, self._total_epochs, default) if number is not None), None)
        if chosen is None:
            raise TrainError("how many epochs? write run.epochs(10), or hyperparameters.epochs in the job (EPOCHS)")
        self._total_epochs = operator.index(chosen)
        for epoch in range(self.epoch + 1, self._total_epochs + 1):
            self.epoch, self.step = epoch, None
            self._metrics, self._is_reported = {}, False
            yield epoch
            self._end_epoch()

    def batches(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches of one epoch, one step each, without the batches that the resumed checkpoint covers.

        The batches must have the same order each time that this epoch is trained.
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
        """Report metrics of a step or epoch. A framework with its own loop adds epoch=, and step= within an epoch."""
        is_within_epoch = self.step is not None or "step" in numbers
        if not self._reports or (is_within_epoch and not self._is_line_due()):
            return  # reading a tensor would wait for its device
        retained = {} if "epoch" in numbers else {name: self._metrics[name] for name in self._metrics.keys() - numbers}
        self._metrics = {**retained, **self._progress.numbers(numbers)}
        self._write_line()

    def due(self, epoch: int | None = None) -> bool:
        """Whether this process should save now: by the epoch frequency, by the interval, at the end, or on a notice.

        A given `epoch` is a completed epoch; without `epoch`, the position is that of the loops.
        """
        if self._env.checkpoint_dir is None:
            return False
        self._notice.announce()
        seen, should_save = self._notice.observe(), self._should_save(*self._position(epoch))
        if self._agree is not None:
            should_save = bool(self._agree(should_save))
        if should_save and not self._saves:
            self._note_saved(seen)  # rank 0 saves
        return should_save and self._saves

    @contextlib.contextmanager
    def checkpoint(self, epoch: int | None = None, *, metrics: Mapping[str, object] | None = None) -> Iterator[Path]:
        """A folder to save into: it becomes a checkpoint once the block succeeds. Errors are raised to the training.

        The loss or accuracy of checkpoints selects the best checkpoint. At the end of an epoch a checkpoint has the
        reported metrics and `metrics`; within an epoch, where reports describe a single step, `metrics` alone.

        Where no checkpoint is needed (outside holdfast, and on other ranks than 0) the folder is deleted.
        """
        seen, at = self._notice.observe(), self._position(epoch)
        with self._folder(*at, metrics or {}) as folder:
            yield folder
        self._note_saved(seen)

    def notice(self) -> str | None:
        """Why the training is asked to save now; None when it is not asked, or has saved since."""
        self._notice.announce()
        return self._notice.pending()

    def on_notice(self, save: Callable[[str], object]) -> None:
        """Call `save` with the reason once for each notice, after the current step or epoch."""
        self._notice.announce()
        self._on_notice = save

    def stop_on_sigterm(self) -> None:
        """Treat SIGTERM as a notice, and exit with code 143 when the notice is answered or the epoch has ended."""
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
            return False  # the epoch ends now; a checkpoint within the epoch would have no step left to resume
        is_planned = step is None and (epoch % self._env.frequency == 0 or epoch == self._total_epochs)
        interval_s = self._env.interval_s
        is_time = interval_s is not None and self._clock() - self._saved_at >= interval_s
        return is_planned or is_time or self.notice() is not None

    def _folder(
        self, epoch: int, step: int | None, given: Mapping[str, object]
    ) -> contextlib.AbstractContextManager[Path]:
        if self._env.checkpoint_dir is None or not self._saves:
            return checkpoint.discarded_folder()
        reported = self._metrics_of(epoch) if step is None else {}
        metrics = {**reported, **self._progress.numbers(given)}
        save = SaveId(self.attempt, self._env.restart, epoch, step)
        writer = checkpoint.ShardWriter(self.rank, self.world if self._shards else None, metrics)
        return checkpoint.saved(self._env.checkpoint_dir, save, writer)

    def _metrics_of(self, epoch: int) -> dict[str, float]:
        """The reported metrics of the epoch that is saved."""
        if self._metrics.get("epoch", self.epoch) != epoch:
            return {}
        return {name: number for name, number in self._metrics.items() if name not in ("epoch", "step")}

    def _note_saved(self, seen: NoticeState) -> None:
        self._saved_at = self._clock()
        self._notice.answer(seen)

    def _end_step(self) -> None:
        if not self._is_last_step():
            # A script that reports nothing within an epoch still shows its progress in a long epoch.
            if self._reports and self._is_line_due():
                self._write_line()
            self._answer_notice()
            self._stop_if_signalled()

    def _end_epoch(self) -> None:
        self._steps_done = 0
        if self._reports and not self._is_reported:
            self._write_line()
        self._answer_notice()
        if self.epoch != self._total_epochs:
            self._stop_if_signalled(at_once=True)

    def _answer_notice(self) -> None:
        if self._on_notice is not None:
            seen, reason = self._notice.observe(), self.notice()
            if reason is not None:
                self._notice.answer(seen)
                self._on_notice(reason)

    def _stop_if_signalled(self, *, at_once: bool = False) -> None:
        if self._notice.is_signalled and (at_once or self.notice() is None):
            raise SystemExit(128 + signal.SIGTERM)

    def _is_last_step(self) -> bool:
        return self.step is not None and self.step == self._steps

    def _is_line_due(self) -> bool:
        return self._is_last_step() or self._clock() - self._line_written_at >= LINE_EVERY_S

    def _write_line(self) -> None:
        position = {"epoch": self.epoch or None, "epochs": self._total_epochs, "step": self.step, "steps": self._steps}
        known = {name: number for name, number in position.items() if number is not None}
        self._progress.write({**known, **self._gpu_metrics(), **self._metrics})
        self._line_written_at, self._is_reported = self._clock(), self.step is None

    def _gpu_metrics(self) -> dict[str, float]:
        percent = self._gpus.utilization_percent()
        return {} if percent is None else {METRIC: percent}


def _length(batches: Iterable[object]) -> int | None:
    """None where the length is unknown: the `len` of a streaming loader raises."""
    try:
        return len(batches)  # type: ignore[arg-type]  # most loaders have a length
    except TypeError:
        return None
