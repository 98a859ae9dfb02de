"""No container checkpoint is begun that the node does not live to see pushed."""

import pytest

from holdfast.node.notice.time_left import MEMORY, RunDurations, too_late


@pytest.mark.parametrize(
    ("remaining_s", "last_run_s", "says"),
    [
        (None, None, ""),
        (None, 500.0, ""),
        (25.0, None, ""),
        (25.0, 24.9, ""),
        (25.0, 25.0, "takes the node back in 25 s, and the last run took 25 s"),
        (3.2, 40.0, "takes the node back in 3 s, and the last run took 40 s"),
        (0.0, None, "its time is over"),
        (0.0, 0.1, "its time is over"),
    ],
)
def test_a_checkpoint_begins_unless_the_last_one_took_longer_than_what_is_left(
    remaining_s: float | None, last_run_s: float | None, says: str
) -> None:
    found = too_late(remaining_s, last_run_s)
    assert says in found
    assert bool(says) == bool(found)


def test_the_last_run_of_each_pod_is_remembered_and_old_pods_are_forgotten() -> None:
    durations = RunDurations()
    for number in range(MEMORY + 1):
        durations.ended(f"pod-{number}", float(number))
    durations.ended("pod-1", 7.0)
    assert durations.last_s("pod-0") is None
    assert durations.last_s("pod-1") == 7.0
