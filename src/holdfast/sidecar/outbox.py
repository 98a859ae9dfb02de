"""Reports that the operator has not received yet, or has received and not recorded in the job's status.

Within an epoch only the newest progress counts. The end of each epoch is sent again until the operator confirms that
the job's status records it: policies count epochs, and an operator that dies may lose what it has received. The outbox
is always bounded. When it is full, further entries stay in the files that they come from; the oldest entries are
dropped only where there is no such file.
"""

from dataclasses import dataclass
from itertools import takewhile

import msgspec
from msgspec import structs

from holdfast.api.reports import (
    LARGEST_BODY,
    MOST_ENTRIES,
    MOST_METRICS,
    CheckpointReport,
    ProgressReport,
    ReportReply,
    Resumed,
    WorkerReport,
)

# Reserved for the fields of every batch: names, the checkpoint that the attempt resumed from, and a backup's progress.
HEAD_BYTES = 16 << 10
MOST_BYTES = 2 << 20
# From this size on, new entries stay in the files that they come from; entries that were read already still fit.
FULL_BYTES = 1 << 20
MOST_CHECKPOINTS = 256
# A checkpoint is persisted within seconds of its epoch, or after an upload or two.
MOST_REMEMBERED = 64
# The operator writes the status every five seconds: an epoch that is not recorded after this time was lost.
RESEND_AFTER_S = 20.0


@dataclass(slots=True)
class PendingEpoch:
    """The end of an epoch; `sent_s` is when the operator last received it."""

    entry: ProgressReport
    size: int
    sent_s: float | None = None


class ReportOutbox:
    """`empty` is a batch without entries, which identifies the worker."""

    def __init__(self, empty: WorkerReport) -> None:
        self._empty = empty
        self._sequence = 0
        self._epochs: dict[int, PendingEpoch] = {}
        self._bytes = 0
        self._step: ProgressReport | None = None
        self._is_step_new = False
        self._checkpoints: dict[tuple[str, str], CheckpointReport] = {}
        self._resumed: Resumed | None = None
        self._in_flight: WorkerReport | None = None
        self._metrics: dict[int, dict[str, float]] = {}
        self.dropped_epochs = 0
        self.newest: ProgressReport | None = None
        """The newest progress of the training."""

    @property
    def is_empty(self) -> bool:
        """Whether every entry was delivered at least once."""
        unsent = any(pending.sent_s is None for pending in self._epochs.values())
        return not (self._in_flight or unsent or self._is_step_new or self._checkpoints or self._resumed)

    @property
    def is_full(self) -> bool:
        return self._bytes >= FULL_BYTES

    def resumed(self, resumed: Resumed | None) -> None:
        self._resumed = resumed

    def add_progress(self, entry: ProgressReport) -> bool:
        """Whether the entry is the end of an epoch, which is reported at once."""
        if entry.step is not None:
            before = self._step
            if before is not None and before.epoch == entry.epoch:
                entry = structs.replace(entry, metrics=_merged(before.metrics, entry.metrics))
            self._step, self._is_step_new, self.newest = entry, True, entry
            return False
        pending = self._epochs.get(entry.epoch)
        if pending is not None:
            if (pending.entry.metrics, pending.entry.total_epochs) == (entry.metrics, entry.total_epochs):
                return False
            entry = structs.replace(entry, metrics=_merged(pending.entry.metrics, entry.metrics))
        self.newest = entry
        self._add_pending(entry)
        self._remember_metrics(entry)
        if self._step is not None and self._step.epoch <= entry.epoch:
            self._step, self._is_step_new = None, False
        return True

    def metrics_of(self, epoch: int) -> dict[str, float]:
        """The metrics at the end of a recent epoch, whether the operator has received them or not."""
        return self._metrics.get(epoch, {})

    def add_checkpoint(self, entry: CheckpointReport) -> None:
        self._checkpoints.pop((entry.path, entry.outcome), None)
        self._checkpoints[entry.path, entry.outcome] = entry
        while len(self._checkpoints) > MOST_CHECKPOINTS:
            del self._checkpoints[next(iter(self._checkpoints))]

    def batch(self, now_s: float, sent_at: float) -> WorkerReport:
        """The batch to send now. A batch that was not delivered is sent again unchanged."""
        if self._in_flight is not None:
            return structs.replace(self._in_flight, sent_at=sent_at)
        self._sequence += 1
        budget = _BatchBudget()
        checkpoints = tuple(entry for entry in self._checkpoints.values() if budget.takes(entry))
        self._in_flight = structs.replace(
            self._empty,
            sequence=self._sequence,
            sent_at=sent_at,
            resumed=self._resumed,
            checkpoints=checkpoints,
            progress=self._progress(now_s, budget),
        )
        return self._in_flight

    def acknowledged(self, reply: ReportReply, now_s: float) -> None:
        """The operator has received the batch in flight."""
        batch, self._in_flight = self._in_flight, None
        if batch is None:
            return
        for entry in batch.progress:
            pending = self._epochs.get(entry.epoch)
            if pending is not None and pending.entry is entry:
                pending.sent_s = now_s
            elif entry is self._step:
                self._is_step_new = False
        for sent in batch.checkpoints:
            if self._checkpoints.get((sent.path, sent.outcome)) is sent:
                del self._checkpoints[sent.path, sent.outcome]
        if batch.resumed is self._resumed:
            self._resumed = None
        recorded = [epoch for epoch in self._epochs if epoch <= reply.recorded_epoch]
        for epoch in recorded:
            if self._epochs[epoch].sent_s is not None:
                self._drop_epoch(epoch)

    def drop_rejected(self) -> None:
        """The operator will never accept the batch in flight: its entries are not sent again."""
        batch, self._in_flight = self._in_flight, None
        if batch is None:
            return
        for entry in batch.progress:
            if entry.step is None:
                self._drop_epoch(entry.epoch)
        for sent in batch.checkpoints:
            self._checkpoints.pop((sent.path, sent.outcome), None)
        self._is_step_new, self._resumed = False, None

    def _progress(self, now_s: float, budget: "_BatchBudget") -> tuple[ProgressReport, ...]:
        """The ends of epochs in order, from the oldest that is not recorded: the operator must not skip an epoch.

        Epochs that do not fit wait until the operator has recorded the epochs before them.
        """
        in_order = (self._epochs[epoch] for epoch in sorted(self._epochs))
        oldest = list(takewhile(lambda pending: budget.takes(pending.entry), in_order))
        is_due = any(_is_due(pending, now_s) for pending in oldest)
        entries = [pending.entry for pending in oldest] if is_due else []
        all_fit = len(oldest) == len(self._epochs)
        # An epoch that is sent again is not new. The current step comes last, so that it counts as the newest.
        if self._step is not None and all_fit and (entries or self._is_step_new) and budget.takes(self._step):
            entries.append(self._step)
        return tuple(entries)

    def _add_pending(self, entry: ProgressReport) -> None:
        self._drop_epoch(entry.epoch)
        pending = PendingEpoch(entry, len(msgspec.json.encode(entry)))
        self._epochs[entry.epoch] = pending
        self._bytes += pending.size
        while self._bytes > MOST_BYTES and len(self._epochs) > 1:
            self._drop_epoch(min(self._epochs))
            self.dropped_epochs += 1

    def _remember_metrics(self, entry: ProgressReport) -> None:
        self._metrics.pop(entry.epoch, None)
        self._metrics[entry.epoch] = entry.metrics
        while len(self._metrics) > MOST_REMEMBERED:
            del self._metrics[next(iter(self._metrics))]

    def _drop_epoch(self, epoch: int) -> None:
        pending = self._epochs.pop(epoch, None)
        self._bytes -= pending.size if pending is not None else 0


class _BatchBudget:
    """The capacity that a batch has left. After the first entry that does not fit, none does: entries stay in order."""

    def __init__(self) -> None:
        self._bytes = LARGEST_BODY - HEAD_BYTES
        self._entries = MOST_ENTRIES

    def takes(self, entry: ProgressReport | CheckpointReport) -> bool:
        self._bytes -= len(msgspec.json.encode(entry)) + 1
        self._entries -= 1
        return self._bytes >= 0 and self._entries >= 0


def _is_due(pending: PendingEpoch, now_s: float) -> bool:
    return pending.sent_s is None or now_s - pending.sent_s >= RESEND_AFTER_S


def _merged(old: dict[str, float], new: dict[str, float]) -> dict[str, float]:
    """New metrics take precedence where not all metrics fit."""
    retained = [name for name in old if name not in new][: MOST_METRICS - len(new)]
    return {**{name: old[name] for name in retained}, **new}
