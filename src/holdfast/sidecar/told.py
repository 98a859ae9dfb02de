"""One word of a training about how far it is: a JSON object, from a line of PROGRESS_FILE or a request."""

import json
import re
from collections.abc import Mapping

from holdfast.errors import HoldfastError
from holdfast.reports.wire import LARGEST_EPOCH, MOST_METRICS, Progress

# As reports/wire.py bounds them.
LARGEST = 2**53
HUGE = 3.5e38
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,63}", re.ASCII)
TOTALS = ("totalEpochs", "epochs", "total_epochs")
STEPS = ("steps", "totalSteps", "total_steps")
POSITION_KEYS = frozenset(("epoch", "step", *TOTALS, *STEPS))


class InvalidProgress(HoldfastError):
    """Nothing that could be reported."""


def parse_line(line: bytes, at: float) -> Progress:
    """What a line says; numbers that no report can carry are left out."""
    try:
        facts = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidProgress("it is not JSON") from None
    if not isinstance(facts, dict):
        raise InvalidProgress("it is not a JSON object")
    return progress({name: value for name, value in facts.items() if type(value) in (int, float)}, at)


def progress(numbers: Mapping[str, float], at: float) -> Progress:
    epoch = _count(numbers.get("epoch"), LARGEST_EPOCH)
    if epoch is None:
        raise InvalidProgress("it has no epoch, a whole number of at least 0")
    return Progress(
        epoch=epoch,
        total_epochs=_first(numbers, TOTALS, LARGEST_EPOCH),
        step=_count(numbers.get("step")),
        steps=_first(numbers, STEPS),
        metrics=_metrics(numbers),
        at=at,
    )


def _metrics(numbers: Mapping[str, float]) -> dict[str, float]:
    usable = {
        name: float(value)
        for name, value in numbers.items()
        if name not in POSITION_KEYS and NAME.fullmatch(name) and -HUGE <= value <= HUGE
    }
    return dict(list(usable.items())[:MOST_METRICS])


def _first(numbers: Mapping[str, float], names: tuple[str, ...], most: int = LARGEST) -> int | None:
    """The first of these that counts something: a total of 0 is not known yet."""
    return next((count for name in names if (count := _count(numbers.get(name), most))), None)


def _count(value: float | None, most: int = LARGEST) -> int | None:
    if value is None or not 0 <= value <= most or value != int(value):
        return None
    return int(value)
