"""One worker from its environment to its exit code."""

import signal
import sys
import time
from collections.abc import Mapping
from functools import partial

import numpy as np

from holdfast.trainer import checkpoint
from holdfast.trainer.asked import Interruptions
from holdfast.trainer.data import load
from holdfast.trainer.errors import BadSetting, Stopped, TrainerError
from holdfast.trainer.group import Group, join
from holdfast.trainer.interrupt import Interrupt
from holdfast.trainer.models import build
from holdfast.trainer.place import place
from holdfast.trainer.report import Report, Score, leave_permanent
from holdfast.trainer.resume import begin
from holdfast.trainer.settings import Settings, settings, with_config_file
from holdfast.trainer.state import Position, State
from holdfast.trainer.training import Task, end_epoch, evaluate, train_epoch


def run(environ: Mapping[str, str], interrupt: Interrupt) -> int:
    try:
        chosen = settings(with_config_file(environ))
        where = place(environ)
        with np.errstate(over="ignore", invalid="ignore"):  # a loss that is no number is an error of its own
            _train_with(chosen, join(where, chosen.digest, chosen.join_timeout_s), interrupt)
    except TrainerError as error:
        message = " ".join(str(error).split())
        sys.stderr.write(f"{message}\n")
        if error.exit_code == BadSetting.exit_code:
            leave_permanent(environ, message)
        return error.exit_code
    return 0


def _train_with(chosen: Settings, group: Group, interrupt: Interrupt) -> None:
    report = Report(chosen, quiet=group.rank > 0)
    try:
        _train(_task(chosen, group, report), interrupt, report)
    except TrainerError as error:
        group.fail(error)
        raise
    finally:
        group.close()


def _task(chosen: Settings, group: Group, report: Report) -> Task:
    data = load(chosen)
    network = build(chosen, data.image_shape, data.classes)
    if chosen.checkpoint_dir is not None and group.rank == 0:
        checkpoint.prepare(chosen.checkpoint_dir)
    report.say(
        f"training {chosen.model} ({network.size} parameters) on {chosen.dataset} ({len(data.train)} samples, "
        f"{len(data.test)} held out) with {chosen.optimizer} and {group.size} worker{'s' * (group.size > 1)}"
    )
    return Task(chosen, data, network, group)


def _train(task: Task, interrupt: Interrupt, report: Report) -> None:
    state, score = begin(task, report)
    interrupt.after_step()
    asked = Interruptions(task.settings, interrupt, rank=task.group.rank, clock=time.monotonic)
    while state.at.epoch < task.settings.epochs:
        state, wished = train_epoch(task, state, asked.poll, partial(_report_step, task, report))
        is_planned = False
        if state.at.samples == len(task.data.train):
            state, score = _end_epoch(task, state, report)
            is_planned = _is_planned(task.settings, state.at.epoch)
        if is_planned or any(wished):
            _save(task, state, score, report)
            asked.note_saved()
        if wished.stop and state.at.epoch < task.settings.epochs:
            raise Stopped(interrupt.number or signal.SIGTERM)  # another worker's signal ends this one too
    task.group.sum(np.zeros(1))  # nobody ends well before worker 0 has saved
    report.finish(state.at.epoch, state.at.loss_before, score)


def _report_step(task: Task, report: Report, at: Position) -> None:
    report.step(at.epoch + 1, at.samples, len(task.data.train))


def _end_epoch(task: Task, state: State, report: Report) -> tuple[State, Score]:
    train_loss, state = state.at.train_loss / len(task.data.train), end_epoch(state)
    score = evaluate(task, state)
    report.epoch(state.at.epoch, score, train_loss)
    return state, score


def _is_planned(settings: Settings, epoch: int) -> bool:
    return epoch % settings.checkpoint_frequency == 0 or epoch == settings.epochs


def _save(task: Task, state: State, score: Score, report: Report) -> None:
    folder = task.settings.checkpoint_dir
    if folder is not None and task.group.rank == 0:
        # Within an epoch the score is that of the epoch before.
        metrics = {"loss": score.loss, "accuracy": score.accuracy} if state.at.samples == 0 else {}
        report.say(f"saved {checkpoint.save(folder, task.network, state, task.settings.shape, metrics)}")
