"""What the operator has not heard yet, and what it has heard and not written down. It is bounded, whatever happens.

Within an epoch only the newest word counts. The end of each epoch is told until the operator says that it is in the
job's status: policies count epochs, and an operator that dies may take with it what it has heard. When there are more
than fit, the rest stays in the files that it comes from; the oldest go only where there is no such file.
"""

from dataclasses import dataclass
from itertools import takewhile

import msgspec
from msgspec import structs

from holdfast.api.reports import (
    LARGEST_BODY,
    MOST_ENTRIES,
    MOST_METRICS,
    Checkpoint,
    Progress,
    ReportReply,
    Resumed,
    WorkerReport,
)

# Room for what is in every batch: names, and what the attempt resumed from.
HEAD_BYTES = 8 << 10
MOST_BYTES = 2 << 20
# From here on more is left in the files that it comes from; what was read already still finds room.
FULL_BYTES = 1 << 20
MOST_CHECKPOINTS = 256
# A checkpoint is kept within seconds of its epoch, or after an upload or two.
MOST_REMEMBERED = 64
# The operator writes a status every five seconds: what is not in it by then was lost on the way.
RESEND_AFTER_S = 20.0


@dataclass(slots=True)
class PendingEpoch:
    """The end of an epoch; `sent_s` is when it was last taken by the operator."""

    entry: Progress
    size: int
    sent_s: float | None = None


class ReportOutbox:
    """`empty` is a batch that says who tells it, and nothing."""

    def __init__(self, empty: WorkerReport) -> None:
        self._empty = empty
        self._sequence = 0
        self._epochs: dict[int, PendingEpoch] = {}
        self._bytes = 0
        self._step: Progress | None = None
        self._is_step_new = False
        self._checkpoints: dict[tuple[str, str], Checkpoint] = {}
        self._resumed: Resumed | None = None
        self._under_way: WorkerReport | None = None
        self._metrics: dict[int, dict[str, float]] = {}
        self.dropped_epochs = 0
        self.newest: Progress | None = None
        """How far the training is."""

    @property
    def is_empty(self) -> bool:
        """Whether everything was told at least once."""
        unsent = any(held.sent_s is None for held in self._epochs.values())
        return not (self._under_way or unsent or self._is_step_new or self._checkpoints or self._resumed)

    @property
    def is_full(self) -> bool:
        return self._bytes >= FULL_BYTES

    def resumed(self, resumed: Resumed | None) -> None:
        self._resumed = resumed

    def add_progress(self, entry: Progress) -> bool:
        """Whether it is the end of an epoch, which is told at once."""
        if entry.step is not None:
            before = self._step
            if before is not None and before.epoch == entry.epoch:
                entry = structs.replace(entry, metrics=_merged(before.metrics, entry.metrics))
            self._step, self._is_step_new, self.newest = entry, True, entry
            return False
        held = self._epochs.get(entry.epoch)
        if held is not None:
            if (held.entry.metrics, held.entry.total_epochs) == (entry.metrics, entry.total_epochs):
                return False
            entry = structs.replace(entry, metrics=_merged(held.entry.metrics, entry.metrics))
        self.newest = entry
        self._hold(entry)
        self._remember(entry)
        if self._step is not None and self._step.epoch <= entry.epoch:
            self._step, self._is_step_new = None, False
        return True

    def metrics_of(self, epoch: int) -> dict[str, float]:
        """What was reported at the end of a recent epoch, whether the operator has heard it or not."""
        return self._metrics.get(epoch, {})

    def add_checkpoint(self, entry: Checkpoint) -> None:
        self._checkpoints.pop((entry.path, entry.outcome), None)
        self._checkpoints[entry.path, entry.outcome] = entry
        while len(self._checkpoints) > MOST_CHECKPOINTS:
            del self._checkpoints[next(iter(self._checkpoints))]

    def batch(self, now_s: float, sent_at: float) -> WorkerReport:
        """What to send now; one that was not taken comes again, as it was."""
        if self._under_way is not None:
            return structs.replace(self._under_way, sent_at=sent_at)
        self._sequence += 1
        room = _BatchBudget()
        checkpoints = tuple(entry for entry in self._checkpoints.values() if room.takes(entry))
        self._under_way = structs.replace(
            self._empty,
            sequence=self._sequence,
            sent_at=sent_at,
            resumed=self._resumed,
            checkpoints=checkpoints,
            progress=self._progress(now_s, room),
        )
        return self._under_way

    def acknowledged(self, answer: ReportReply, now_s: float) -> None:
        """The batch under way has arrived."""
        batch, self._under_way = self._under_way, None
        if batch is None:
            return
        for entry in batch.progress:
            held = self._epochs.get(entry.epoch)
            if held is not None and held.entry is entry:
                held.sent_s = now_s
            elif entry is self._step:
                self._is_step_new = False
        for told in batch.checkpoints:
            if self._checkpoints.get((told.path, told.outcome)) is told:
                del self._checkpoints[told.path, told.outcome]
        if batch.resumed is self._resumed:
            self._resumed = None
        written = [epoch for epoch in self._epochs if epoch <= answer.recorded_epoch]
        for epoch in written:
            if self._epochs[epoch].sent_s is not None:
                self._forget(epoch)

    def drop_rejected(self) -> None:
        """The batch under way will never be taken: what is in it is not sent again."""
        batch, self._under_way = self._under_way, None
        if batch is None:
            return
        for entry in batch.progress:
            if entry.step is None:
                self._forget(entry.epoch)
        for told in batch.checkpoints:
            self._checkpoints.pop((told.path, told.outcome), None)
        self._is_step_new, self._resumed = False, None

    def _progress(self, now_s: float, room: "_BatchBudget") -> tuple[Progress, ...]:
        """The ends of epochs go in order, the oldest first that is not written down: an operator passes over none.

        Those that do not fit wait until the operator has written down what was before them.
        """
        in_order = (self._epochs[epoch] for epoch in sorted(self._epochs))
        oldest = list(takewhile(lambda held: room.takes(held.entry), in_order))
        is_due = any(_is_due(held, now_s) for held in oldest)
        entries = [held.entry for held in oldest] if is_due else []
        whole = len(oldest) == len(self._epochs)
        # An epoch that is told again is no news; where the training is now comes last, so that it is not taken for one.
        if self._step is not None and whole and (entries or self._is_step_new) and room.takes(self._step):
            entries.append(self._step)
        return tuple(entries)

    def _hold(self, entry: Progress) -> None:
        self._forget(entry.epoch)
        held = PendingEpoch(entry, len(msgspec.json.encode(entry)))
        self._epochs[entry.epoch] = held
        self._bytes += held.size
        while self._bytes > MOST_BYTES and len(self._epochs) > 1:
            self._forget(min(self._epochs))
            self.dropped_epochs += 1

    def _remember(self, entry: Progress) -> None:
        self._metrics.pop(entry.epoch, None)
        self._metrics[entry.epoch] = entry.metrics
        while len(self._metrics) > MOST_REMEMBERED:
            del self._metrics[next(iter(self._metrics))]

    def _forget(self, epoch: int) -> None:
        held = self._epochs.pop(epoch, None)
        self._bytes -= held.size if held is not None else 0


class _BatchBudget:
    """What still fits into a batch. After the first entry that does not, none does: they stay in order."""

    def __init__(self) -> None:
        self._bytes = LARGEST_BODY - HEAD_BYTES
        self._entries = MOST_ENTRIES

    def takes(self, entry: Progress | Checkpoint) -> bool:
        self._bytes -= len(msgspec.json.encode(entry)) + 1
        self._entries -= 1
        return self._bytes >= 0 and self._entries >= 0


def _is_due(held: PendingEpoch, now_s: float) -> bool:
    return held.sent_s is None or now_s - held.sent_s >= RESEND_AFTER_S


def _merged(old: dict[str, float], new: dict[str, float]) -> dict[str, float]:
    """What is told now comes first where there is not room for all."""
    kept = [name for name in old if name not in new][: MOST_METRICS - len(new)]
    return {**{name: old[name] for name in kept}, **new}
