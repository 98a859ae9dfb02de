"""Output of checkpoints for users: tables, sizes and result lines."""

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from holdfast.cli.checkpoints.messages import CheckpointInfo, PruneResult, VerifyResult
from holdfast.cli.get import aligned
from holdfast.cli.session import printable
from holdfast.cluster.protocol import JSON
from holdfast.times import age

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
HEADERS = ("EPOCH", "STEP", "ATTEMPT", "SIZE", "FILES", "SAVED", "VALID", "RESUME", "LOSS", "ACCURACY", "BEST")
WIDE_HEADERS = (*HEADERS, "WORKERS", "TIME", "PATH", "REASON")

VALID = {"valid": "yes", "undigested": "yes, undigested"}


def table(found: Iterable[CheckpointInfo], now: datetime, *, wide: bool, headers: bool) -> list[str]:
    rows = [_row(saved, now, wide=wide) for saved in found]
    first: list[Sequence[str]] = [WIDE_HEADERS if wide else HEADERS] if headers else []
    return aligned([*first, *rows])


def document(name: str, address: str, found: Sequence[CheckpointInfo]) -> JSON:
    """All facts as a document for -o yaml and -o json."""
    return {"job": name, "storage": address, "checkpoints": [_plain(saved) for saved in found]}


def size(count: int | None) -> str:
    """A readable size with at most 3 digits, so that columns stay narrow."""
    if count is None:
        return "-"
    value, unit = float(count), 0
    while value >= 1000 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    digits = 0 if unit == 0 or value >= 10 else 1
    return f"{value:.{digits}f} {UNITS[unit]}"


def display_name(saved: CheckpointInfo) -> str:
    return f"epoch {saved.epoch} of attempt {saved.attempt}"


def _row(saved: CheckpointInfo, now: datetime, *, wide: bool) -> list[str]:
    files = "-" if saved.files is None else str(saved.files)
    saved_age = f"{age(saved.saved_at, now)} ago" if saved.saved_at else "-"
    valid = VALID.get(saved.state, f"no, {saved.state}")
    step = "-" if saved.step is None else str(saved.step)
    position = [str(saved.epoch), step, str(saved.attempt)]
    row = [*position, size(saved.bytes), files, saved_age, valid, "next" * saved.resumes]
    row += [*(_number(saved.metrics.get(name)) for name in ("loss", "accuracy")), "best" * saved.best]
    if wide:
        workers = "-" if saved.workers is None else str(saved.workers)
        row += [workers, saved.saved_at or "-", saved.path, saved.reason]
    return [printable(cell) for cell in row]


def _number(metric: float | None) -> str:
    return "-" if metric is None else f"{metric:.4g}"


def _plain(saved: CheckpointInfo) -> JSON:
    facts: JSON = msgspec.to_builtins(saved)
    return {name: value for name, value in facts.items() if name != "type"}


def verified_lines(fact: VerifyResult) -> list[str]:
    """A line for the checkpoint, and a line for each damaged file."""
    saved = fact.saved
    if fact.damage:
        return [f"{display_name(saved)}: damaged", *(f"  {printable(sentence)}" for sentence in fact.damage)]
    if saved.files is None:
        return [f"{display_name(saved)}: left out, {saved.state}"]
    return [f"{display_name(saved)}: ok, {size(saved.bytes)} in {saved.files} files"]


def prune_line(fact: PruneResult) -> str:
    saved = fact.saved
    return f"{display_name(saved)}: {'deleted' if fact.deleted else 'would go'}, {size(saved.bytes)}"
