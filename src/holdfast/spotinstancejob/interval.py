"""How often the replicas of a job are checkpointed: a written duration, or the interval that costs the least. Pure."""

from collections.abc import Sequence

AUTO = "auto"


def checkpoint_interval_s(
    written: str,
    *,
    costs_s: Sequence[float],
    lifetime_s: float,
    notice_s: float = 0.0,
    current_s: int | None = None,
) -> int:
    """spec.checkpointConfig.checkpointInterval in whole seconds, for status.checkpointIntervalSeconds.

    costs_s: the seconds frozen in the job's last checkpoints, the newest last; the last five count.
    lifetime_s: what `mean_lifetime_s` says. notice_s: how long before the end a machine is told; 0 without a notice.
    current_s: what status says now; `auto` leaves it while the new value differs by less than a fifth.
    """
    raise NotImplementedError


def mean_lifetime_s(taken_back: int, seconds: float) -> float:
    """Of a machine, from the account of the SpotInstanceVM over all zones: so many machines lived so long together."""
    raise NotImplementedError


def is_saved_on_notice(last_checkpoint_s: float | None, notice_s: float) -> bool:
    """Whether a replica whose machine goes in `notice_s` is saved, too: its last checkpoint took less than half of it.

    last_checkpoint_s: from the request to the last pushed image; None while there was none.
    """
    raise NotImplementedError


def offset_s(replica: int, replicas: int, interval_s: float) -> float:
    """How long after the beginning of each interval this replica is saved, so that no two are frozen together."""
    raise NotImplementedError
