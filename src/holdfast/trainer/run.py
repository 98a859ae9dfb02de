"""Runs one worker: reads its environment, trains, and returns its exit code."""

import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from holdfast.train.notice import Notice
from holdfast.trainer import checkpoint
from holdfast.trainer.allreduce import Group, join
from holdfast.trainer.checkpoint import begin
from holdfast.trainer.data import load
from holdfast.trainer.interrupt import Interrupt
from holdfast.trainer.model import build
from holdfast.trainer.report import Report, Score, write_permanent_failure
from holdfast.trainer.settings import (
    InvalidTrainerSetting,
    Stopped,
    TrainerError,
    TrainerSettings,
    read_rank_info,
    settings,
    with_config_file,
)
from holdfast.trainer.training import Position, State, StopOrSave, Task, end_epoch, evaluate, train_epoch

# The requests to this worker: a signal to stop, a notice to save, or the checkpoint interval.


class Interruptions:
    """The requests to one worker: only worker 0 checks the interval, any worker may receive a notice."""

    def __init__(
        self, settings: TrainerSettings, interrupt: Interrupt, *, rank: int, clock: Callable[[], float]
    ) -> None:
        self._interrupt = interrupt
        self._interval_s = settings.checkpoint_interval_s if rank == 0 else None
        self._clock = clock
        self._saves = settings.checkpoint_dir is not None
        self._notice = Notice(settings.notice_file)
        if self._saves:
            self._notice.announce()
        self._seen = self._notice.observe()
        self._saved_at_s = clock()

    def poll(self) -> StopOrSave:
        self._seen = self._notice.observe()
        is_time = self._interval_s is not None and self._clock() - self._saved_at_s >= self._interval_s
        save = self._saves and (is_time or self._notice.pending() is not None)
        return StopOrSave(stop=bool(self._interrupt.number), save=save)

    def note_saved(self) -> None:
        """Mark the notice from before the last step as answered; a later notice is not."""
        self._notice.answer(self._seen)
        self._saved_at_s = self._clock()


def run(environ: Mapping[str, str], interrupt: Interrupt) -> int:
    try:
        chosen = settings(with_config_file(environ))
        rank_info = read_rank_info(environ)
        with np.errstate(over="ignore", invalid="ignore"):  # a loss that is not finite raises `Diverged`
            _train_with(chosen, join(rank_info, chosen.digest, chosen.join_timeout_s), interrupt)
    except TrainerError as error:
        message = " ".join(str(error).split())
        sys.stderr.write(f"{message}\n")
        if error.exit_code == InvalidTrainerSetting.exit_code:
            write_permanent_failure(environ, message)
        return error.exit_code
    return 0


def _train_with(chosen: TrainerSettings, group: Group, interrupt: Interrupt) -> None:
    report = Report(chosen, quiet=group.rank > 0)
    try:
        _train(_task(chosen, group, report), interrupt, report)
    except TrainerError as error:
        group.fail(error)
        raise
    finally:
        group.close()


def _task(chosen: TrainerSettings, group: Group, report: Report) -> Task:
    data = load(chosen)
    network = build(chosen, data.image_shape, data.classes)
    if chosen.checkpoint_dir is not None and group.rank == 0:
        checkpoint.prepare(chosen.checkpoint_dir)
    report.log(
        f"training {chosen.model} ({network.size} parameters) on {chosen.dataset} ({len(data.train)} samples, "
        f"{len(data.test)} held out) with {chosen.optimizer} and {group.size} worker{'s' * (group.size > 1)}"
    )
    return Task(chosen, data, network, group)


def _train(task: Task, interrupt: Interrupt, report: Report) -> None:
    state, score = begin(task, report)
    interrupt.after_step()
    interruptions = Interruptions(task.settings, interrupt, rank=task.group.rank, clock=time.monotonic)
    while state.at.epoch < task.settings.epochs:
        state, requested = train_epoch(task, state, interruptions.poll, partial(_report_step, task, report))
        is_planned = False
        if state.at.samples == len(task.data.train):
            state, score = _end_epoch(task, state, report)
            is_planned = _is_planned(task.settings, state.at.epoch)
        if is_planned or any(requested):
            _save(task, state, score, report)
            interruptions.note_saved()
        if requested.stop and state.at.epoch < task.settings.epochs:
            raise Stopped(interrupt.number or signal.SIGTERM)  # a signal to another worker stops this worker, too
    task.group.sum(np.zeros(1))  # no worker succeeds before worker 0 has saved
    report.finish(state.at.epoch, state.at.loss_before, score)


def _report_step(task: Task, report: Report, at: Position) -> None:
    report.step(at.epoch + 1, at.samples, len(task.data.train))


def _end_epoch(task: Task, state: State, report: Report) -> tuple[State, Score]:
    train_loss, state = state.at.train_loss / len(task.data.train), end_epoch(state)
    score = evaluate(task, state)
    report.epoch(state.at.epoch, score, train_loss)
    return state, score


def _is_planned(settings: TrainerSettings, epoch: int) -> bool:
    return epoch % settings.checkpoint_frequency == 0 or epoch == settings.epochs


def _save(task: Task, state: State, score: Score, report: Report) -> None:
    folder = task.settings.checkpoint_dir
    if folder is not None and task.group.rank == 0:
        # Within an epoch the score is that of the previous epoch.
        metrics = {"loss": score.loss, "accuracy": score.accuracy} if state.at.samples == 0 else {}
        report.log(f"saved {checkpoint.save(folder, task.network, state, task.settings.shape, metrics)}")
