"""How far a training is, from the Prometheus metrics that it serves.

`training_epoch` is the epoch under way where there is a `training_step`, and the epochs that are done where there is
none. What passes between two looks is not seen.
"""

from collections.abc import Mapping

from holdfast.reports.wire import Progress
from holdfast.sidecar.told import InvalidProgress, progress

# What is reported as what; HOLDFAST_METRIC_NAMES changes and adds to it.
NAMES: Mapping[str, str] = {
    "epoch": "training_epoch",
    "epochs": "training_epochs_total",
    "step": "training_step",
    "steps": "training_steps_total",
    "loss": "training_loss",
    "accuracy": "training_accuracy",
}


def read_samples(text: str, names: Mapping[str, str]) -> dict[str, float]:
    """The numbers that are asked for, each the first of its name, whatever its labels are."""
    found: dict[str, float] = {}
    wanted = frozenset(names.values())
    for line in text.splitlines():
        if line.startswith("#") or not line.startswith(tuple(wanted)):
            continue
        for name, value in _samples(line):
            if name in wanted:
                found.setdefault(name, value)
    return {name: found[metric] for name, metric in names.items() if metric in found}


def _samples(line: str) -> list[tuple[str, float]]:
    # Most trainings have no such page, and every pod would carry it.
    from prometheus_client.parser import text_string_to_metric_families

    try:
        families = list(text_string_to_metric_families(f"{line}\n"))
    except (ValueError, IndexError, KeyError):
        return []
    return [(sample.name, sample.value) for family in families for sample in family.samples]


class ScrapeState:
    """What is new in one look after the other."""

    def __init__(self) -> None:
        self._before: Progress | None = None

    def new_entries(self, numbers: Mapping[str, float], at: float) -> list[Progress]:
        try:
            now = progress(numbers, at)
        except InvalidProgress:
            return []
        before, self._before = self._before, now
        if before is not None and (before.epoch, before.step, before.metrics) == (now.epoch, now.step, now.metrics):
            return []
        if before is None or before.step is None or now.step is None or now.epoch <= before.epoch:
            return [now]
        return [_ended(before, now.epoch - 1), now]


def _ended(before: Progress, epoch: int) -> Progress:
    """The end of an epoch, with what was last seen of it; of those that passed unseen only the last is known."""
    metrics = before.metrics if before.epoch == epoch else {}
    return Progress(epoch=epoch, total_epochs=before.total_epochs, metrics=metrics, at=before.at)
