"""The output of a training: text on stdout, JSON lines in PROGRESS_FILE, and a termination message.

Only worker 0 reports. A report that can't be written is no reason to stop a training.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.trainer.settings import TrainerSettings

STDOUT = 1
KUBELET_LOG = Path("/dev/termination-log")
# The shortest time between two reports of steps.
LINE_EVERY_S = 1.0
# The operator fails a job without a retry if a worker exits with this reason.
PERMANENT = "PermanentFailure"
# The kubelet reads at most 4096 bytes, and a message may contain escapes.
MOST_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Score:
    """The quality of the model on the held-out data."""

    loss: float
    accuracy: float


class Report:
    def __init__(self, settings: TrainerSettings, *, quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._total_epochs = settings.epochs
        self._samples_per_step = settings.batch_size * settings.accumulation_steps
        self._clock = clock
        self._line_at_s = clock()
        self._progress_file = None if quiet else settings.progress_file
        self._termination_log = None if quiet else settings.termination_log or _kubelet_log()
        self._quiet = quiet

    def log(self, line: str) -> None:
        if not self._quiet:
            with contextlib.suppress(OSError):
                os.write(STDOUT, f"{line}\n".encode())

    def epoch(self, epoch: int, score: Score, train_loss: float | None = None) -> None:
        """Epoch 0 is the untrained model."""
        train_loss_text = "" if train_loss is None else f"  train loss {train_loss:.4f}"
        self.log(
            f"epoch {epoch}/{self._total_epochs}  loss {score.loss:.4f}  accuracy {score.accuracy:.4f}{train_loss_text}"
        )
        facts = {"epoch": epoch, "epochs": self._total_epochs, "loss": score.loss, "accuracy": score.accuracy}
        if train_loss is not None:
            facts["trainLoss"] = train_loss
        if self._progress_file is not None:
            _append(self._progress_file, json.dumps(facts) + "\n")

    def step(self, epoch: int, samples: int, total: int) -> None:
        """Report the completed samples within an epoch, so that a long epoch shows progress before its end."""
        if self._progress_file is None or self._clock() - self._line_at_s < LINE_EVERY_S:
            return
        step, steps = (-(-count // self._samples_per_step) for count in (samples, total))
        facts = {"epoch": epoch, "epochs": self._total_epochs, "step": step, "steps": steps}
        _append(self._progress_file, json.dumps(facts) + "\n")
        self._line_at_s = self._clock()

    def finish(self, epochs: int, loss_before: float, score: Score) -> None:
        facts = {"epochs": epochs, "lossBefore": loss_before, "lossAfter": score.loss, "accuracy": score.accuracy}
        summary = json.dumps(facts)
        self.log(summary)
        if self._termination_log is not None:
            _write_termination_log(self._termination_log, summary)


def write_permanent_failure(environ: Mapping[str, str], message: str) -> None:
    """Report to the operator, by the reason, that a new attempt would fail in the same way."""
    given = environ.get("TERMINATION_LOG") or environ.get("HOLDFAST_TERMINATION_LOG")
    file = Path(given) if given else _kubelet_log()
    if file is not None:
        _write_termination_log(file, json.dumps({"reason": PERMANENT, "message": message[:MOST_CHARACTERS]}))


def _kubelet_log() -> Path | None:
    """The kubelet mounts this file into a container; where the file does not exist, nobody would read it."""
    return KUBELET_LOG if KUBELET_LOG.exists() else None


def _append(file: Path, line: str) -> None:
    """One atomic append: a reader never sees a partial line, nor two mixed lines."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        sys.stderr.write(f"can't write progress to {file}: {error.strerror}\n")


def _write_termination_log(file: Path, summary: str) -> None:
    try:
        file.write_text(summary)
    except OSError as error:
        sys.stderr.write(f"can't leave the summary in {file}: {error.strerror}\n")
