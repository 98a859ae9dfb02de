"""Replays an event log: how much of the machines' time goes into training that counts, for one way of checkpointing.

On every machine of the log a copy trains from its first second to its last. What it has done since its last checkpoint
is lost when the machine is taken back. Pure: time is the log's.
"""

from collections.abc import Iterable

from msgspec import Struct

from holdfast.spotinstancejob.interval import checkpoint_interval_s, mean_lifetime_s
from tests.spotinstancejob.traces import MachineEvent


class Policy(Struct, frozen=True, kw_only=True):
    cost_s: float
    """For how long a checkpoint stops the training."""
    written: str = "auto"
    """checkpointInterval"""
    longer: bool = False
    """Whether the interval is that of a job that saves on notice."""
    saves_on_notice: bool = False
    """Whether a machine's last seconds are saved: its notice is longer than a checkpoint takes."""


class Goodput(Struct, frozen=True, kw_only=True):
    share: float
    """Of the machines' time that is in the result: 1 if nothing was frozen or lost."""
    interval_s: int
    """The last one."""


def replay(log: Iterable[MachineEvent], policy: Policy) -> Goodput:
    fleet = _Fleet(policy)
    at_s = 0.0
    for at_s, kind, machine in log:
        if kind == "add":
            fleet.copies[machine] = _Copy(at_s)
        else:
            fleet.take_back(machine, at_s)
    for copy in fleet.copies.values():
        fleet.run(copy, at_s)
        fleet.count(copy, at_s, saved_s=copy.useful_s + max(0.0, at_s - copy.saved_at_s))
    return Goodput(share=fleet.useful_s / fleet.total_s, interval_s=fleet.interval_s)


class _Copy:
    """A training on one machine."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.saved_at_s = began_s
        """When its last checkpoint was over."""
        self.useful_s = 0.0
        """What is in that checkpoint."""


class _Fleet:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.copies: dict[str, _Copy] = {}
        self.taken_back, self.lifetimes_s = 0, 0.0
        self.useful_s = self.total_s = 0.0
        self.interval_s = self._interval_s(None)

    def take_back(self, machine: str, at_s: float) -> None:
        for each in self.copies.values():
            self.run(each, at_s)
        copy = self.copies.pop(machine)
        since_s = at_s - copy.saved_at_s
        last_s = max(0.0, since_s - self.policy.cost_s) if self.policy.saves_on_notice else 0.0
        self.count(copy, at_s, saved_s=copy.useful_s + last_s)
        self.taken_back += 1
        self.lifetimes_s += at_s - copy.began_s
        self.interval_s = self._interval_s(self.interval_s)

    def run(self, copy: _Copy, until_s: float) -> None:
        """All checkpoints that are over until then."""
        while (done_s := copy.saved_at_s + self.interval_s + self.policy.cost_s) <= until_s:
            copy.saved_at_s = done_s
            copy.useful_s += self.interval_s

    def count(self, copy: _Copy, at_s: float, *, saved_s: float) -> None:
        self.useful_s += saved_s
        self.total_s += at_s - copy.began_s

    def _interval_s(self, current_s: int | None) -> int:
        return checkpoint_interval_s(
            self.policy.written,
            costs_s=[self.policy.cost_s],
            lifetime_s=mean_lifetime_s(self.taken_back, self.lifetimes_s),
            saves_on_notice=self.policy.longer,
            current_s=current_s,
        )
