"""How often the replicas of a job are checkpointed: a written duration, or the interval that costs the least. Pure.

A checkpoint stops the training for its cost, and the loss of a machine costs half an interval on the average. The sum
is smallest at √(2 × cost × mean lifetime): J. W. Young, A first order approximation to the optimum checkpoint interval,
Communications of the ACM 17 (9), 1974.
"""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

from holdfast.api.spotinstancejob import AUTO_INTERVAL
from holdfast.times import HOUR, MINUTE, parse_duration_s

SHORTEST_S, LONGEST_S = MINUTE, 6 * HOUR
# So many checkpoints tell the cost: older ones were of a smaller or larger training.
COSTS = 5
# Before the first checkpoint nobody knows its cost. Memory and files of a few GB take about that long.
UNKNOWN_COST_S = 30.0
# Counts as one machine more in the account: spot machines of the large clouds live for hours rather than minutes.
PRIOR_LIFETIME_S = 4.0 * HOUR
# With a save on notice, only those losses cost work that come without one, or whose save fails: one in four, at a guess
# on the safe side. Four times the lifetime is twice the interval.
ON_NOTICE = 2.0
# A smaller change is not worth a move of all later checkpoints.
SMALLEST_CHANGE = 0.2
# A save on notice may take this part of the notice: the machine is busy, and its network with it.
SHARE_OF_NOTICE = 0.5


def checkpoint_interval_s(
    written: str,
    *,
    costs_s: Sequence[float],
    lifetime_s: float,
    saves_on_notice: bool = False,
    current_s: int | None = None,
) -> int:
    """spec.checkpointConfig.checkpointInterval in whole seconds, for status.checkpointIntervalSeconds.

    costs_s: the seconds frozen in the job's last checkpoints, the newest last. lifetime_s: what `mean_lifetime_s` says.
    saves_on_notice: what `is_saved_on_notice` says. current_s: what status says now.
    """
    if written != AUTO_INTERVAL:
        return max(1, round(parse_duration_s(written)))
    wanted_s = _cheapest_s(costs_s, lifetime_s) * (ON_NOTICE if saves_on_notice else 1.0)
    wanted_s = min(max(wanted_s, SHORTEST_S), LONGEST_S)
    if current_s is not None and abs(wanted_s - current_s) <= SMALLEST_CHANGE * current_s:
        # It may have been written by hand before.
        return round(min(max(current_s, SHORTEST_S), LONGEST_S))
    return round(wanted_s)


def mean_lifetime_s(taken_back: int, seconds: float) -> float:
    """Of a machine, from the account of the SpotInstanceVM over all zones: so many machines lived so long together."""
    return (PRIOR_LIFETIME_S + max(0.0, seconds)) / (1 + max(0, taken_back))


def is_saved_on_notice(last_checkpoint_s: float | None, notice_s: float) -> bool:
    """Whether a replica whose machine goes in `notice_s` is saved, too: its last checkpoint took less than half of it.

    last_checkpoint_s: from the request to the last pushed image; None while there was none.
    """
    return last_checkpoint_s is not None and last_checkpoint_s < SHARE_OF_NOTICE * notice_s


def offset_s(replica: int, replicas: int, interval_s: float) -> float:
    """How long after the beginning of each interval this replica is saved, so that no two are frozen together."""
    count = max(1, replicas)
    return interval_s * (replica % count) / count


def next_checkpoint_time(began: datetime, after: datetime, *, offset: float, interval_s: float) -> datetime:
    """When a replica is saved next: began + k intervals + its offset, for the first k that is late enough.

    began: of the job, the same for all replicas; it is in the future where the clock was put back since. after: the
    replica's last checkpoint or its start, whichever is later; from it at least half an interval passes, so that a
    change of the interval causes no two checkpoints in a row.
    """
    earliest_s = (after - began).total_seconds() + interval_s / 2
    number = math.ceil((earliest_s - offset) / interval_s)
    return began + timedelta(seconds=number * interval_s + offset)


def _cheapest_s(costs_s: Sequence[float], lifetime_s: float) -> float:
    last = [max(0.0, cost) for cost in costs_s[-COSTS:]]
    cost_s = math.fsum(last) / len(last) if last else UNKNOWN_COST_S
    return math.sqrt(2 * cost_s * max(0.0, lifetime_s))
